"""schemathesis over ``/openapi.json``: cases drawn from our own document, by a seed, some hundred of them.

Fails where an answer is a 5xx, or a status, type or shape that the document does not tell. Whether a request *should*
have been refused is not asked: the document says less of a value than the parsers do.
"""

import os
import subprocess
import sys
from pathlib import Path

from checks import API_KEY, BASE_URL, run

SEED = "6"
CASES_A_ROUTE = "15"
TIMEOUT_S = 240.0
WATCHED = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def no_5xx_and_nothing_undocumented() -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "st", "run", BASE_URL.removesuffix("/v1") + "/openapi.json"),
            *("--header", f"Authorization: Bearer {API_KEY}", "--checks", WATCHED, "--phases", "coverage,fuzzing"),
            *("--max-examples", CASES_A_ROUTE, "--seed", SEED, "--no-shrink", "--suppress-health-check", "all"),
            *("--continue-on-failure", "--warnings", "off", "--request-timeout", "60"),
        ],
        env={**os.environ, "SCHEMATHESIS_HOOKS": "document_hooks", "PYTHONPATH": str(here)},
        stdout=sys.stderr,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"st ended with {done.returncode}: see its report"


run(no_5xx_and_nothing_undocumented)
