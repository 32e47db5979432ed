"""Prints what a million mutated frames do to the decoders; exit code 1 if anything came out that may not."""

import argparse
import json
import sys

from tests.fuzz.run import fuzz, heaviest_frame


def main() -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = fuzz(args.frames, args.seed)
    heaviest, times, reader = heaviest_frame(min(args.frames, 30_000), args.seed + 1)
    shown = {
        "frames": report.frames,
        "seed": report.seed,
        "frames_per_s": report.frames_per_s,
        "samples": report.samples,
        "readers": report.readers,
        "taken": report.taken,
        "refused": dict(report.refused.most_common()),
        "crashes": report.crashes,
        "rss_start_bytes": report.rss_start_bytes,
        "rss_warm_bytes": report.rss_warm_bytes,
        "rss_end_bytes": report.rss_end_bytes,
        "rss_peak_bytes": report.rss_peak_bytes,
        "heaviest_frame_bytes": heaviest,
        "heaviest_frame_times_its_length": round(times, 1),
        "heaviest_frame_reader": reader,
    }
    lines = [json.dumps(shown, indent=2)] if args.json else [f"{name}: {value}" for name, value in shown.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
