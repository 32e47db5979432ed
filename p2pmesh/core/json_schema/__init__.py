"""JSON Schemas -> grammars: every text of the grammar is JSON that satisfies the schema.

What cannot be promised is refused by name; nothing is left out silently. A grammar may be narrower than its schema: one
order of properties, no exponents, dates up to the 28th.
"""
