"""A conversation with a model: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.stopping_criteria import StoppingCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.utils.logging import disable_progress_bar

from rlhf_cli.chat_model import ChatModel
from rlhf_runtime.data.row_checks import RowProblem
from rlhf_runtime.data.row_text import PromptWriter
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.stop_texts import StopTexts
from rlhf_runtime.data.tokenizer import TextTokenizer

Write = Callable[[str], None]


class Conversation:
    """Messages so far, and the model that answers.

    has_template: False if the model has no chat template: then every prompt stands alone.
    """

    def __init__(self, model: ChatModel, seed: int | None = None) -> None:
        """Load the model, onto a GPU if there is one.

        Args:
            model: its folder, and how it is asked.
            seed: of sampling. None: another one every time.

        Raises:
            ChatTemplateUnusable: the job needs a template and the tokenizer has none.
        """
        self._tokenizer = TextTokenizer(model.folder, model.end_tokens)
        self._stop_texts = self._tokenizer.stop_texts(model.stop)
        self._writer = PromptWriter(model.source, SourceSetting(Split.TRAIN), self._tokenizer)
        self.has_template = self._writer.is_templated
        self._arguments = model.source.chat_template_arguments
        disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = "auto" if device == "cuda" else torch.float32
        self._model = AutoModelForCausalLM.from_pretrained(model.folder, dtype=dtype).to(device)
        self._temperature, self._truncation = model.temperature, model.truncation
        self._max_tokens, self._cuts_at_context = model.max_tokens, model.cuts_at_context
        self._messages: list[dict[str, str]] = []
        if seed is not None:
            torch.manual_seed(seed)

    def forget(self) -> None:
        """Begin another conversation."""
        self._messages.clear()

    def answer(self, text: str, write: Write) -> str:
        """Answer a prompt; remembers both if there is a chat template.

        Args:
            text: of the user.
            write: takes the parts of the answer as they come.

        Raises:
            RowProblem: the template refuses the messages, or they are too long.
        """
        asked = [*self._messages, {"role": "user", "content": text}]
        prompt = self._writer.write(asked if self.has_template else text, self._arguments)
        column = self._tokenizer.encode([prompt], not self.has_template)
        max_tokens = self._max_answer_tokens(len(column.values))
        tokens = torch.tensor(column.values[None].astype("int64"), device=self._model.device)
        streamer = _Streamer(self._tokenizer, write)
        self._generate(tokens, max_tokens, streamer)
        answer = streamer.text
        if self.has_template:
            self._messages = [*asked, {"role": "assistant", "content": answer}]
        return answer

    def _max_answer_tokens(self, num_tokens: int) -> int:
        """Return the limit of an answer to a prompt of so many tokens."""
        limit: int | None = getattr(self._model.config, "max_position_embeddings", None)
        needed = 1 if self._cuts_at_context else self._max_tokens
        if limit is None:
            return self._max_tokens
        if num_tokens + needed > limit:
            raise RowProblem(
                f"the conversation does not fit into the model's context: got {num_tokens} tokens "
                f"and an answer of up to {self._max_tokens}, allowed {limit}"
            )
        return min(self._max_tokens, limit - num_tokens)

    def _generate(self, tokens: torch.Tensor, max_tokens: int, streamer: BaseStreamer) -> None:
        sampling: dict[str, Any] = {"do_sample": False}
        if self._temperature > 0:
            # As the job samples, not by the defaults of transformers or of the model.
            sampling = {
                "do_sample": True,
                "temperature": self._temperature,
                "top_k": self._truncation.top_k or 0,
                "top_p": self._truncation.top_p or 1.0,
                "min_p": self._truncation.min_p or 0.0,
            }
        self._model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=max_tokens,
            eos_token_id=list(self._tokenizer.end_token_ids),
            pad_token_id=self._tokenizer.pad_token_id,
            streamer=streamer,
            stopping_criteria=[] if self._stop_texts is None else [_Stopping(self._stop_texts)],
            **sampling,
        )


class _Stopping(StoppingCriteria):  # type: ignore[misc]  # transformers has no types here
    """Ends an answer at a stop text."""

    def __init__(self, stop_texts: StopTexts) -> None:
        self._search = stop_texts.search()

    def __call__(self, tokens: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        is_end = self._search.add(int(tokens[0, -1]))
        return torch.tensor([is_end], device=tokens.device)


class _Streamer(BaseStreamer):  # type: ignore[misc]  # transformers has no types here
    """Writes the text of tokens as soon as it is complete."""

    def __init__(self, tokenizer: TextTokenizer, write: Write) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._tokens: list[int] | None = None
        self.text = ""

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt's tokens first, then each token of the answer."""
        if self._tokens is None:
            self._tokens = []
            return
        ends = self._tokenizer.end_token_ids
        self._tokens += [token for token in value.flatten().tolist() if token not in ends]
        text = self._tokenizer.text_of(self._tokens)
        # A part of a character becomes a replacement character until the rest has come.
        if not text.endswith("\ufffd"):
            self._extend(text)

    def end(self) -> None:
        """Write the rest."""
        self._extend(self._tokenizer.text_of(self._tokens or []))

    def _extend(self, text: str) -> None:
        if len(text) > len(self.text):
            self._write(text[len(self.text) :])
            self.text = text
