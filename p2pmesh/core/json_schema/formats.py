"""Values of ``format`` as expressions of a JSON string, without its quotes: each a part of what the format allows."""

_LABEL = "[a-z0-9] ([a-z0-9-]{0,20} [a-z0-9])?"
_HOST = f'{_LABEL} ("." {_LABEL}){{0,3}} "." [a-z]{{2,10}}'
_BYTE = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9])'
_DATE = '[12] [0-9]{3} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
_HOURS = '("0" [0-9] | "1" [0-9] | "2" [0-3]) ":" [0-5] [0-9]'
_TIME = f'{_HOURS} ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_HOURS})'
_HEX = "[0-9a-f]"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "duration": '"P" ([1-9] [0-9]{0,3} "D" | "T" [1-9] [0-9]{0,3} [HMS])',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" [1-5] {_HEX}{{3}} "-" [89ab] {_HEX}{{3}} "-" {_HEX}{{12}}',
    "email": f'[a-z0-9] [a-z0-9._+-]{{0,30}} [a-z0-9] "@" {_HOST}',
    "hostname": _HOST,
    "ipv4": f'{_BYTE} "." {_BYTE} "." {_BYTE} "." {_BYTE}',
    "ipv6": f'{_HEX}{{1,4}} (":" {_HEX}{{1,4}}){{7}}',
    "uri": f'("https" | "http") "://" {_HOST} ("/" [a-zA-Z0-9._~-]{{1,40}}){{0,6}} "/"?',
}
"""By name; others are not supported."""
