"""`python -m ebb.digest FILE…`: the SHA-256 of a safetensors file's tensor data, to compare models by."""

from __future__ import annotations

import sys


def main(paths: list[str]) -> int:
    from ebb.refuse import Refused
    from ebb.tensors import digest_of

    if not paths:
        print("usage: python -m ebb.digest FILE…", file=sys.stderr)
        return 2
    for path in paths:
        try:
            print(f"{digest_of(path)}  {path}")
        except (OSError, Refused) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
