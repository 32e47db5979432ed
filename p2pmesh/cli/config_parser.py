"""Names and syntax of ``p2pmesh config``; part of ``cli.parser``."""

from p2pmesh.cli.actions import Commands, add_action, add_group

CONFIG_ACTIONS = ("validate", "show", "reload")


def add_config(commands: Commands) -> None:
    """Adds ``config`` and its actions to the commands."""
    actions = add_group(commands, "config", "Settings of a node, in config.toml of its home.")
    for name, summary in (
        ("validate", "Say every mistake in the file, with its line and what to do."),
        ("show", "Show every setting, its value, and where that comes from."),
    ):
        action = add_action(actions, name, summary)
        action.add_argument("config", metavar="FILE", nargs="?", help="default: config.toml of the home")
    add_action(actions, "reload", "Have the running node read its file again; a broken one changes nothing.")
