"""Tests take as long as a busy machine makes them: no example of Hypothesis's fails by the clock."""

from hypothesis import HealthCheck, settings

if settings.get_current_profile_name() == "default":  # mutation testing has loaded one of its own
    settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")
