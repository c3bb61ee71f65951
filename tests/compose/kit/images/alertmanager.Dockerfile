# Stands in for the official Alertmanager image. Context: usr/ of Debian's packages, which keep the templates apart
FROM soak-test/base
COPY bin/prometheus-alertmanager /usr/bin/alertmanager
COPY share/prometheus/alertmanager /usr/share/prometheus/alertmanager
RUN install -d -o 65534 -g 65534 /alertmanager
USER nobody
WORKDIR /alertmanager
VOLUME /alertmanager
ENTRYPOINT ["/usr/bin/alertmanager"]
