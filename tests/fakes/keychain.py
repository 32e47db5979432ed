"""The library ``keyring``, as ``adapters.keychain`` uses it: put it into ``sys.modules``."""

from types import ModuleType


class FakeKeyring(ModuleType):
    """Entries in memory."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.entries: dict[tuple[str, str], str] = {}

    def set_password(self, service: str, user: str, password: str) -> None:
        self.entries[service, user] = password

    def get_password(self, service: str, user: str) -> str | None:
        return self.entries.get((service, user))

    def delete_password(self, service: str, user: str) -> None:
        del self.entries[service, user]
