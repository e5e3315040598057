//! Who may take which slots back. The token in the agent's data directory is its operator's and opens all slots. From it tokens of fleets
//! are derived, each good for the slots it names and no others. The agent keeps no list of them, so they work when everything else is gone;
//! all of them end when the operator's token is replaced. Next file: `direct.rs`.

use controller_link::{AgentToken, SecretError, read_private};
use events_schema::{FleetId, ServerId};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// The token of one fleet at one agent; as text `FLEET/0+1+2/PROOF`.
#[derive(Clone)]
pub struct FleetToken {
    fleet: FleetId,
    slots: BTreeSet<u16>,
    proof: String,
}

impl FleetToken {
    /// Good for these slots of the server whose agent has this operator's token.
    #[must_use]
    pub fn derive(operator: &AgentToken, server: &ServerId, fleet: FleetId, slots: BTreeSet<u16>) -> Self {
        let proof = proof(operator, server, &fleet, &slots).expose();
        Self { fleet, slots, proof }
    }

    /// The text form: for the wire and for files with mode 600 only.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{}/{}/{}", self.fleet, joined(&self.slots), self.proof)
    }

    fn parse(text: &str) -> Option<Self> {
        let (fleet, rest) = text.trim().split_once('/')?;
        let (slots, proof) = rest.split_once('/')?;
        let fleet = FleetId::parse(fleet).ok()?;
        let slots = slots.split('+').map(|slot| slot.parse().ok()).collect::<Option<BTreeSet<u16>>>()?;
        Some(Self { fleet, slots, proof: proof.to_owned() })
    }
}

impl fmt::Debug for FleetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetToken({} for {})", self.fleet, joined(&self.slots))
    }
}

/// What a caller shows to an agent: its operator's token, or a fleet's.
#[derive(Clone)]
pub struct TakeBackToken(String);

impl TakeBackToken {
    /// Reads either from a file that nobody else may read.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let text = read_private(path)?.trim().to_owned();
        if AgentToken::parse(&text).is_err() && FleetToken::parse(&text).is_none() {
            return Err(SecretError::Form);
        }
        Ok(Self(text))
    }

    /// The value of an `authorization` header that shows it.
    #[must_use]
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// Whom a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Who runs the agent: all slots.
    Operator,
    /// A fleet: these slots.
    Fleet { fleet: FleetId, slots: BTreeSet<u16> },
}

impl Holder {
    /// Whom the value of an `authorization` header proves.
    pub fn of(operator: &AgentToken, server: &ServerId, authorization: Option<&str>) -> Option<Self> {
        if operator.accepts(authorization) {
            return Some(Holder::Operator);
        }
        let FleetToken { fleet, slots, proof: shown } = FleetToken::parse(authorization?.strip_prefix("Bearer ")?)?;
        let expected = proof(operator, server, &fleet, &slots);
        expected.accepts(Some(&format!("Bearer {shown}"))).then_some(Holder::Fleet { fleet, slots })
    }

    /// Whether it may take this slot back.
    pub fn may_take(&self, slot: u16) -> bool {
        match self {
            Holder::Operator => true,
            Holder::Fleet { slots, .. } => slots.contains(&slot),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Operator => f.write_str("the operator"),
            Holder::Fleet { fleet, slots } => write!(
                f,
                "fleet `{fleet}`, for slots {}",
                slots.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
            ),
        }
    }
}

fn proof(operator: &AgentToken, server: &ServerId, fleet: &FleetId, slots: &BTreeSet<u16>) -> AgentToken {
    operator.derive(&format!("take back {server} {fleet} {}", joined(slots)))
}

fn joined(slots: &BTreeSet<u16>) -> String {
    slots.iter().map(u16::to_string).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(text: &str) -> String {
        format!("Bearer {text}")
    }

    #[test]
    fn a_fleet_may_take_the_slots_that_its_token_names_and_cannot_name_others() {
        let (operator, server) = (AgentToken::generate().unwrap(), ServerId::parse("local").unwrap());
        let fleet = FleetId::parse("chat-eu.1").unwrap();
        let token = FleetToken::derive(&operator, &server, fleet.clone(), BTreeSet::from([0, 2]));
        let of = |text: &str| Holder::of(&operator, &server, Some(&shown(text)));
        let holder = of(&token.expose()).unwrap();
        assert_eq!(holder, Holder::Fleet { fleet, slots: BTreeSet::from([0, 2]) });
        assert!(holder.may_take(2) && !holder.may_take(1));
        assert_eq!(of(&operator.expose()), Some(Holder::Operator));
        for forged in [
            token.expose().replace("0+2", "0+1+2"),
            token.expose().replace("chat-eu.1", "chat-eu.2"),
            format!("chat-eu.1/0+2/{}", operator.expose()),
            "chat-eu.1/0+2/".to_owned(),
            String::new(),
        ] {
            assert_eq!(of(&forged), None, "{forged}");
        }
        assert_eq!(Holder::of(&AgentToken::generate().unwrap(), &server, Some(&shown(&token.expose()))), None);
        assert!(!format!("{token:?}").contains(&token.proof));
    }
}
