# Stands in for the official Prometheus image: same entry point, user and folders. Context: usr/ of Debian's packages
FROM soak-test/base
COPY bin/prometheus /usr/bin/prometheus
RUN install -d -o 65534 -g 65534 /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
