"""On what terms people decide what an action asks: how many, who, until when, or a rule that asks nobody.

A policy belongs to a program and is looked at once, when a request is asked; what it says is frozen in the log then
(`PolicyTerms`), and decides later in any process, whatever policies that one has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from eventlog.decide import Terms, check_roles
from eventlog.errors import InvalidInput
from eventlog.events import PolicyTerms
from eventlog.plain import check_id
from eventlog.proposal import Proposal, stored_proposal
from eventlog.run import Run
from eventlog.runtime.foreign import ends_program
from eventlog.runtime.run_streams import printable
from eventlog.stores.telemetry import logger

__all__ = ["Policies", "Policy", "Rule"]

Rule = Callable[[Proposal], bool | str]
"""Looks at a proposal: True, or why it needs nobody; False or an empty text where people are to decide."""

_MICRO: Final = 1_000_000
_MAX_REQUIRED: Final = 1000
_MAX_EXPIRES_IN_S: Final = 100 * 365 * 24 * 3600
_MAX_REASON: Final = 1024
_MAX_LEVEL: Final = 3
_DEFAULT: Final = PolicyTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the requests of one action are decided. All of it is off by default: one decision by anybody, at any time.

    `required` approvals by different people, while one rejection decides; each by somebody who brings one of `roles`,
    if any are named; with `separation_of_duties` not by who proposed or edited what is asked. A request that nobody has
    decided on within `expires_in_s` seconds expires. `level` is the least that an approval has to be: 0 asserted by
    the program, 1 authenticated by a server, 2 signed with the approver's own key, 3 with one in hardware; no rule
    approves what has to be signed. Below level 2 an approver's roles are what the program, or he himself, says they
    are; from level 2 on only those count for which his key was enrolled (`keys enroll --role`). `auto` approves at once
    and asks nobody: True does so always, a function of the proposal where it returns True or the reason. A rule that
    raises asks people.
    """

    required: int = 1
    roles: Collection[str] = ()
    expires_in_s: float | None = None
    separation_of_duties: bool = False
    auto: bool | Rule | None = None
    level: int = 0

    def __post_init__(self) -> None:
        if type(self.required) is not int or not 1 <= self.required <= _MAX_REQUIRED:
            raise _invalid(f"`required` is a number of people from 1 to {_MAX_REQUIRED}, not {self.required!r:.80}")
        object.__setattr__(self, "roles", check_roles(self.roles))
        if self.expires_in_s is not None and not _is_duration(self.expires_in_s):
            raise _invalid(f"`expires_in_s` is a number of seconds above 0, not {self.expires_in_s!r:.80}")
        if type(self.separation_of_duties) is not bool:
            raise _invalid(f"`separation_of_duties` is True or False, not {self.separation_of_duties!r:.80}")
        if type(self.level) is not int or not 0 <= self.level <= _MAX_LEVEL:
            raise _invalid(f"`level` is a number from 0 to {_MAX_LEVEL}, not {self.level!r:.80}")
        if self.level and self.auto:
            raise _invalid("`auto` asks nobody, so that its approvals have the level 0: leave `level` or `auto` away")
        is_rule = callable(self.auto) and not inspect.iscoroutinefunction(self.auto)
        if self.auto is not None and type(self.auto) is not bool and not is_rule:
            raise _invalid(
                f"`auto` is True, or a function of the proposal that waits for nothing, not {self.auto!r:.80}"
            )

    def terms(self, proposal: Proposal, now_us: int) -> Terms:
        """Return on what terms this proposal is asked now."""
        policy = PolicyTerms(
            required=self.required,
            roles=tuple(self.roles),
            separation_of_duties=self.separation_of_duties,
            level=self.level,
        )
        reason, failure = self._ask_rule(proposal)
        return Terms(
            policy=policy if policy != _DEFAULT else None,
            expires_at_us=None if self.expires_in_s is None else now_us + max(1, round(self.expires_in_s * _MICRO)),
            auto=reason,
            rule_failed=failure,
        )

    def _ask_rule(self, proposal: Proposal) -> tuple[str | None, str | None]:
        """Return why nobody has to be asked, None if people have to; and why the rule could not say, if so."""
        if self.auto is None or isinstance(self.auto, bool):
            return f"its policy approves every {proposal.action}" if self.auto else None, None
        name = printable(str(getattr(self.auto, "__qualname__", type(self.auto).__qualname__)))
        try:
            # Decoded afresh: a rule may change what it is given, and what is asked is what was proposed.
            verdict: object = self.auto(stored_proposal(proposal.canonical))
        except BaseException as error:
            if ends_program(error):
                raise
            logger.warning("policy_rule_failed", rule=name, action=proposal.action, error=type(error).__name__)
            return None, f"the rule {name} raised {type(error).__name__}"[:_MAX_REASON]
        if isinstance(verdict, str):
            return printable(verdict)[:_MAX_REASON] or None, None
        if type(verdict) is not bool:
            if inspect.iscoroutine(verdict):
                verdict.close()
            logger.warning("policy_rule_failed", rule=name, action=proposal.action, error=type(verdict).__name__)
            return None, f"the rule {name} returned a {type(verdict).__name__}"[:_MAX_REASON]
        return f"the rule {name} approves it"[:_MAX_REASON] if verdict else None, None


def _no_digest(action: str) -> None:
    """Nothing is known of any action."""


class Policies:
    """The policies of a program by the name of the action. An action without one is decided once, by anybody.

    `digest_of` returns the digest of an action's definition, None for one that the program does not know.
    """

    def __init__(
        self, by_action: Mapping[str, Policy] | None = None, *, digest_of: Callable[[str], str | None] = _no_digest
    ) -> None:
        self._digest_of: Final = digest_of
        self._by_action: Final = dict(by_action or {})
        for action, policy in self._by_action.items():
            check_id(action, "action", max_bytes=128)
            if not isinstance(policy, Policy):
                raise _invalid(f"the policy of {action!r} is a Policy, not a {type(policy).__name__}")

    def terms(self, proposal: Proposal, now_us: int) -> Terms:
        """Return on what terms this proposal is asked now."""
        policy = self._by_action.get(proposal.action)
        terms = policy.terms(proposal, now_us) if policy is not None else Terms()
        return replace(terms, action_sha256=self._digest_of(proposal.action))

    def may_expire(self, action: str) -> bool:
        """Say whether requests of this action have an end, so that it matters when exactly they are asked."""
        policy = self._by_action.get(action)
        return policy is not None and policy.expires_in_s is not None

    def terms_of_edit(self, run: Run, proposal: Proposal, now_us: int) -> Terms:
        """Return on what terms an edited proposal is asked instead of that of `run`.

        They are those of its own action. Where this program has none for it, an action that stays the same keeps the
        terms that it was asked on: a program that knows less must not ask for less. So the level is never lower than
        that of what is edited, whatever it is edited to.
        """
        is_same = run.proposal is not None and run.proposal.action == proposal.action
        if is_same and proposal.action not in self._by_action:
            digest = self._digest_of(proposal.action)
            return Terms(policy=run.policy, expires_at_us=run.expires_at_us, action_sha256=digest)
        return _at_least(self.terms(proposal, now_us), run.policy.level if run.policy is not None else 0)

    def level_of(self, action: str) -> int:
        """Return the least level that this program asks of an approval of this action."""
        policy = self._by_action.get(action)
        return policy.level if policy is not None else 0

    def require_actions(self, actions: Collection[str]) -> None:
        """Raise InvalidInput(`invalid_argument`) for a policy of an action that a program with actions does not have.

        A misspelt name would be no policy at all. A program without any action only lets people decide.
        """
        unknown = [action for action in self._by_action if action not in actions]
        if actions and unknown:
            known = ", ".join(sorted(actions))
            raise _invalid(f"there is a policy for {unknown[0]!r}, and no such action; the actions are {known}")

    def __contains__(self, action: object) -> bool:
        return action in self._by_action


def _at_least(terms: Terms, level: int) -> Terms:
    """Return the terms with this level, if theirs is lower; then no rule can approve instead of a person."""
    policy = terms.policy or PolicyTerms()
    return terms if policy.level >= level else replace(terms, policy=replace(policy, level=level), auto=None)


def _is_duration(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= _MAX_EXPIRES_IN_S  # of no number that is not finite


def _invalid(message: str) -> InvalidInput:
    return InvalidInput("invalid_argument", message)
