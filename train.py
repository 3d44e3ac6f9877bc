"""``python train.py --config configs/bc.json``: the same as ``offrl train``."""

import sys

from offrl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
