"""Train the same policy with offrl."""

import argparse
import json

from offrl import Trainer, config_factory
from offrl.checkpoint import write_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--dataset", required=True)
parser.add_argument("--output", required=True)
args = parser.parse_args()

with open(args.config) as file:
    content = json.load(file)
config = config_factory(content["algo_name"], content)
config.train.data = args.dataset

# The data are read and the networks are made here.
trainer = Trainer(config)

print("algorithm:", type(trainer.algo).__name__)
for record in trainer():
    if record["type"] == "train":
        epoch, logs = record["epoch"], record["logs"]
        print(f"epoch {epoch}: loss {logs['Loss']:.3f}")

write_checkpoint(args.output, trainer.state())
