"""Pins the laboratory's tasks and orders anew: milepost/lab/panels.json. Earlier results then compare with nothing."""

from __future__ import annotations

import json

from milepost.lab.panels import FILE, pinned_now

if __name__ == "__main__":
    FILE.write_text(json.dumps(pinned_now(), indent=1) + "\n", encoding="utf-8")
    print(FILE)
