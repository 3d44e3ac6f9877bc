"""Write a JSON Schema of configs, with which editors complete, check and explain keys.

example: offrl schema --output offrl.schema.json
"""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", metavar="FILE", help="the file to write (default: the terminal)"
    )


def run(args: argparse.Namespace) -> int:
    from offrl.config.json_schema import config_schema
    from offrl.outputs import new_file, write_text

    path = new_file(args.output) if args.output else None
    text = json.dumps(config_schema(), indent=1)
    if path is None:
        print(text)
        return 0
    write_text(path, text + "\n")
    print(path)
    return 0
