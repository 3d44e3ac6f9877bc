"""The section ``distributed`` of a config: work on several machines."""

from pydantic import Field

from offrl.config.section import Section


class DistributedConfig(Section):
    address: str | None = Field(
        None,
        description="The Ray to work on: local (one that is started on this machine and ends with "
        "the program), auto (the one that runs on this machine) or HOST:PORT (the head of a "
        "cluster of which this machine is a node). null: none.",
    )
