# Where images are built: the base, and the packages that a build would have fetched. Context: build/compose/wheels
FROM soak-test/base
COPY . /wheels
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
