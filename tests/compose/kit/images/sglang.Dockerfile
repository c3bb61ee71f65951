# Stands in for an official SGLang image: the files of a release, installed as a checkout that Python is pointed to,
# which is how the official images do it. Context: build/compose/sglang/site
FROM soak-test/build AS click
RUN python3 -m pip install -q --root-user-action=ignore --target /click click

FROM soak-test/base
COPY --from=click /click /usr/local/lib/python3.11/dist-packages
COPY sglang /sgl-workspace/sglang/python/sglang
RUN echo /sgl-workspace/sglang/python > /usr/local/lib/python3.11/dist-packages/__editable__.sglang.pth
WORKDIR /sgl-workspace
