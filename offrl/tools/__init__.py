"""The commands of the ``offrl`` program, one per file.

Each has ``HELP`` (one line), ``EPILOG`` (an example), ``add_arguments(parser)`` and
``run(args) -> exit status``.
"""
