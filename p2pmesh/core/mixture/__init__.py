"""A mixture of models: one request put to several, one answer made of theirs."""
