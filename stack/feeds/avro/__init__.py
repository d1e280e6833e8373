"""Avro values: schemas, the wire format, the reference codec and the columnar one."""
