# An SGLang that somebody has edited where the fix belongs. Context: none
FROM soak-test/sglang
ARG FILE=/sgl-workspace/sglang/python/sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py
RUN sed -i 's/s\["req_pool_indices"\]\[bs:r\]/s["req_pool_indices"][bs : r]/' $FILE && grep -qF '[bs : r]' $FILE
