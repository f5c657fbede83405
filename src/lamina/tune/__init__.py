"""Choosing among candidate schedules and backends by measurement."""
