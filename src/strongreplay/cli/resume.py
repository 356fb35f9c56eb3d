"""ser resume: go on with runs that were stopped."""

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.run import resume_command

COMMAND = Command("resume", resume_command, STUDY, 20)
