"""Makes what Prometheus and Grafana read: alert rules of both from one source, and the dashboards.

Never part of a running soak. ``python -m deploy.generate`` writes the files; a test keeps them equal to what
it would write.
"""
