"""Admission: API keys, fair shares of clients, a gate for bursts."""
