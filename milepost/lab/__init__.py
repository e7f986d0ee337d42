"""The laboratory of credit rules: `milepost lab credit` (docs/credit.md)."""
