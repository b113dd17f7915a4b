# SPDX-License-Identifier: Apache-2.0
"""An extension of vLLM's workers (worker_extension_cls). vLLM imports it in each worker before it
loads a model. It makes the weights of load_format=dummy a hundred times larger, and those of norms
1. With the usual weights, the tokens depend on little more than the last token of the prompt."""

from vllm.model_executor.model_loader import dummy_loader


class Strong:
    pass


initialize = dummy_loader.initialize_single_dummy_weight


def strong(param):
    initialize(param, -0.1, 0.1)
    if param.dim() == 1 and param.is_floating_point():
        param.data.fill_(1)


dummy_loader.initialize_single_dummy_weight = strong
