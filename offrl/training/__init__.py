# ruff: noqa: F401
"""Training: a generator of log records, and wrappers around it that each do one thing."""

from offrl.assembly.recorded import Experiment
from offrl.processes import Interrupted
from offrl.training.acting import OnlineTraining
from offrl.training.checkpointer import Checkpointer, TaggedFiles
from offrl.training.evaluator import Evaluator, Proxies
from offrl.training.interrupts import Interrupts
from offrl.training.launch import Result, submit, train
from offrl.training.logger import Logger
from offrl.training.loop import Training
from offrl.training.progress import Progress
from offrl.training.recorded import Trainer
from offrl.training.run import RunFolder
