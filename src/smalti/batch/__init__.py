"""Pictures by the hundred: a table of records becomes a folder of pictures, each made exactly once.

    table.py ── rows ──► records.py ── records ──► run.py ── workers ──► folder.py ──► sheet.py
"""
