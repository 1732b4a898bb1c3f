"""Settings of all tests. Properties are searched without a deadline, since the machine may be busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("cntkio", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cntkio")
