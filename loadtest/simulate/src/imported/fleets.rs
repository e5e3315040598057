//! A log's fleets: what servers they had, and how many slots of each kind they kept for themselves when, whichever way that was said: by a demand signal, by slots
//! that are offered and asked back by name, or by a recall. How that is written for a run is not said here.

use super::speeds::median;
use crate::cluster::{Cluster, Group};
use events_schema::SlotId;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The type of slots of servers that say none.
const NO_TYPE: &str = "slot";

/// All that a log says of fleets and servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Fleets {
    servers: BTreeMap<String, Server>,
    /// What each fleet said, as it came.
    said: BTreeMap<String, Vec<(u64, Said)>>,
    /// What each needed by its last signal: most signals repeat it.
    needs: BTreeMap<String, u64>,
    /// How long a gradient took each job on slots of each type, as it was last said.
    times: BTreeMap<String, BTreeMap<String, u64>>,
    /// When a server was given up, and when a slot was of no use.
    lost_ms: Vec<u64>,
    useless_ms: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Server {
    joined_ms: u64,
    /// So many of its slots, the first, are devices.
    devices: usize,
    slot_type: Option<String>,
    class: String,
    guests: bool,
}

/// What changes how many slots a fleet lends.
#[derive(Debug, Clone)]
enum Said {
    Declared {
        slots: BTreeSet<SlotId>,
        by_demand: bool,
        deadline_ms: u64,
    },
    Needs(u64),
    /// So many; none: all.
    Recalled(Option<u64>),
    Released,
    Offered(Vec<SlotId>),
    /// Asked back: `named` if neither for its demand nor by a forecast.
    Reclaimed {
        slot: SlotId,
        named: bool,
    },
}

/// What fleets were between two moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fleeting {
    /// Servers all of whose slots were lent all the time.
    pub cluster: Cluster,
    /// Those that were not, in the order of their fleets' names.
    pub serving: Vec<Serving>,
    /// From a reclaim to the kill: the longest that a fleet allows.
    pub deadline_ms: Option<u64>,
    /// Whether slots had guest slots.
    pub guests: bool,
    /// The types of slots that are devices, and whether others are lent too.
    pub devices: BTreeSet<String>,
    pub others: bool,
    /// What a run cannot have as it was.
    pub left_out: Vec<String>,
}

/// Servers that are alike, of a fleet that needs slots of them at times.
#[derive(Debug, Clone, PartialEq)]
pub struct Serving {
    /// Its name, and where it has several kinds of servers a number behind a `/`, which is in no name.
    pub name: String,
    /// Its servers.
    pub group: Group,
    /// Slots that it keeps: milliseconds from the first submission, and how many from then on.
    pub kept: Vec<(u64, u64)>,
}

/// A fleet at a moment.
#[derive(Debug, Clone)]
struct Now {
    /// In which group each of its slots is whose server is there.
    there: BTreeMap<SlotId, usize>,
    declared: Counted,
    by_demand: bool,
    needs: Option<u64>,
    recalled: Option<Option<u64>>,
    lent: Counted,
    /// Taken back by name, and not offered since.
    taken: BTreeSet<SlotId>,
}

/// Slots, and how many of them are in each group.
#[derive(Debug, Clone)]
struct Counted {
    slots: BTreeSet<SlotId>,
    of: Vec<u64>,
}

/// Slots of a fleet that are alike: so many are on each server, and they are of this kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    each: u16,
    kind: String,
    /// The kind without what their servers compute.
    slot_type: String,
}

/// What is known of types of slots.
struct Types<'a> {
    /// How many times as fast as those of the others they are.
    factors: BTreeMap<String, f64>,
    /// What servers compute that have them, or name them.
    classes: BTreeMap<String, BTreeSet<&'a str>>,
}

impl Fleets {
    /// Takes a fact that is about them.
    pub fn fact(&mut self, at_ms: u64, kind: &str, fact: &Value) {
        let text = |key: &str| fact[key].as_str().unwrap_or_default().to_owned();
        let said = match kind {
            "agent_joined" => return self.joined(at_ms, fact),
            "agent_gone" => return self.lost_ms.push(at_ms),
            "slot_quarantined" => return self.useless_ms.push(at_ms),
            "types_measured" => {
                let times = fact["times"].as_array().into_iter().flatten();
                let of = |time: &Value| {
                    let slot_type = time["slot_type"].as_str().unwrap_or(NO_TYPE).to_owned();
                    Some((slot_type, time["unit_us"].as_u64().filter(|us| *us > 0)?))
                };
                self.times.insert(text("job"), times.filter_map(of).collect());
                return;
            }
            "fleet_declared" => Said::Declared {
                slots: slots(&fact["slots"]).collect(),
                by_demand: fact["offers"] != "explicit",
                deadline_ms: fact["reclaim_deadline_ms"].as_u64().unwrap_or(0),
            },
            "demand_accepted" => {
                let needed = fact["needed"].as_u64().unwrap_or(0);
                if self.needs.insert(text("fleet"), needed) == Some(needed) {
                    return;
                }
                Said::Needs(needed)
            }
            "fleet_recalled" => Said::Recalled(fact["slots"]["slots"].as_u64()),
            "fleet_released" => Said::Released,
            "slots_offered" => Said::Offered(slots(&fact["slots"]).collect()),
            "slot_reclaimed" => {
                let Some(slot) = fact["slot"].as_str().and_then(|slot| slot.parse().ok()) else { return };
                Said::Reclaimed { slot, named: fact["cause"] == "named" || fact["cause"] == "direct" }
            }
            _ => return,
        };
        self.said.entry(text("fleet")).or_default().push((at_ms, said));
    }

    fn joined(&mut self, at_ms: u64, fact: &Value) {
        let text = |key: &str| fact[key].as_str().map(str::to_owned);
        let Some(name) = text("server") else { return };
        let joined_ms = self.servers.get(&name).map_or(at_ms, |known| known.joined_ms);
        let server = Server {
            joined_ms,
            devices: fact["devices"].as_array().map_or(0, Vec::len),
            slot_type: text("slot_type"),
            class: text("class").unwrap_or_default(),
            guests: fact["guests"] == true,
        };
        self.servers.insert(name, server);
    }

    /// How many times as fast as those of the others slots of each type are: by the jobs that were measured on several, beside the type that most of these know.
    pub fn factors(&self) -> BTreeMap<String, f64> {
        let several = || self.times.values().filter(|times| times.len() > 1);
        let mut known = BTreeMap::<&String, usize>::new();
        several().flat_map(BTreeMap::keys).for_each(|of| *known.entry(of).or_default() += 1);
        let Some(base) = known.iter().max_by_key(|(_, count)| **count).map(|(of, _)| *of) else {
            return BTreeMap::new();
        };
        let mut ratios = BTreeMap::<String, Vec<f64>>::new();
        for times in several() {
            let Some(us) = times.get(base) else { continue };
            times.iter().for_each(|(of, other)| ratios.entry(of.clone()).or_default().push(*us as f64 / *other as f64));
        }
        ratios.into_iter().filter_map(|(of, ratios)| Some((of, (median(ratios)? * 1e3).round() / 1e3))).collect()
    }

    /// The same of a slot.
    pub fn factor(&self, factors: &BTreeMap<String, f64>, slot: &SlotId) -> f64 {
        let server = self.servers.get(slot.server.as_str());
        server.and_then(|server| factors.get(&server.named(self.is_device(slot)))).copied().unwrap_or(1.0)
    }

    fn types(&self) -> Types<'_> {
        let mut classes = BTreeMap::<String, BTreeSet<&str>>::new();
        for server in self.servers.values() {
            for device in [true, false] {
                classes.entry(server.named(device)).or_default().insert(&server.class);
            }
        }
        Types { factors: self.factors(), classes }
    }

    /// What they were between two moments.
    pub fn between(&self, window: (u64, u64)) -> Fleeting {
        let mut found = Fleeting::default();
        let types = self.types();
        let (mut hosts, mut strangers) = (BTreeMap::<&str, BTreeSet<&str>>::new(), 0);
        let mut kinds = BTreeMap::new();
        for (fleet, said) in &self.said {
            let declared = declared(said, window);
            for slot in &declared.slots {
                let known = self.servers.get_key_value(slot.server.as_str());
                match known.filter(|(_, server)| server.joined_ms <= window.1) {
                    Some((server, _)) => {
                        hosts.entry(server).or_default().insert(fleet);
                    }
                    None => strangers += 1,
                }
            }
            found.deadline_ms = found.deadline_ms.max(declared.deadline_ms);
            kinds.extend(self.add((fleet, said), &declared.slots, window, &types, &mut found));
        }
        let is_unknown = |(_, slot_type): &(&String, &String)| !types.factors.contains_key(*slot_type);
        let unknown: Vec<&str> = kinds.iter().filter(is_unknown).map(|(kind, _)| kind.as_str()).collect();
        if kinds.len() > 1 && !unknown.is_empty() {
            let what = format!(
                "how fast slots of {} are, which no job was measured on beside others: as fast as those",
                unknown.join(", ")
            );
            found.left_out.push(what);
        }
        found.guests = hosts.keys().any(|name| self.servers.get(*name).is_some_and(|server| server.guests));
        let within = |times: &[u64]| times.iter().filter(|at_ms| (window.0..window.1).contains(at_ms)).count();
        let shared = hosts.values().filter(|fleets| fleets.len() > 1).count();
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                found.left_out.push(format!("{what} ({count})"));
            }
        };
        say(strangers, "slots whose server was never there");
        say(shared, "that servers have slots of several fleets: they are a server of each");
        say(within(&self.lost_ms), "that servers were given up: they are there all the time");
        say(within(&self.useless_ms), "that slots were in quarantine: they are of use all the time");
        found
    }

    /// Adds a fleet: its servers that are alike as a group each. Gives their kinds, each with its type.
    fn add(
        &self,
        (fleet, said): (&str, &[(u64, Said)]),
        all: &BTreeSet<SlotId>,
        window: (u64, u64),
        types: &Types<'_>,
        found: &mut Fleeting,
    ) -> BTreeMap<String, String> {
        let alike = self.alike(all, window.1, types);
        let (mut sizes, mut devices) = (BTreeMap::<&Alike, u64>::new(), BTreeSet::new());
        for (slot, of) in &alike {
            *sizes.entry(of).or_default() += 1;
            if self.is_device(slot) {
                devices.insert(of);
            }
        }
        let (groups, sizes): (Vec<&Alike>, Vec<u64>) = sizes.into_iter().unzip();
        let place = |of: &Alike| groups.binary_search(&of).ok();
        let places: BTreeMap<&SlotId, usize> = alike.iter().filter_map(|(slot, of)| Some((slot, place(of)?))).collect();
        let kept = super::clipped(&self.kept(said, &places, &sizes), window);
        let (mut kinds, mut serves) = (BTreeMap::new(), 0);
        for (place, (of, size)) in groups.iter().zip(&sizes).enumerate() {
            let kind = of.kind.clone();
            let servers = u32::try_from(size / u64::from(of.each)).unwrap_or(u32::MAX);
            let speed = types.factors.get(&of.slot_type).copied().unwrap_or(1.0);
            // Before it was declared a fleet lent nothing.
            let kept: Vec<(u64, u64)> =
                kept.iter().map(|(ms, of)| (*ms, of.get(place).copied().unwrap_or(*size))).collect();
            let (least, most) = kept.iter().fold((*size, 0), |(least, most), (_, of)| (least.min(*of), most.max(*of)));
            if least == *size {
                found.left_out.push(format!("slots of the fleet {fleet} of which it lent none ({size})"));
                continue;
            }
            if devices.contains(of) {
                found.devices.insert(kind.clone());
            } else {
                found.others = true;
            }
            kinds.insert(kind.clone(), of.slot_type.clone());
            let group = Group { servers, slots: of.each, kind, speed };
            if most == 0 {
                merge(&mut found.cluster, group);
            } else {
                serves += 1;
                let name = if place == 0 { fleet.to_owned() } else { format!("{fleet}/{}", place + 1) };
                found.serving.push(Serving { name, group, kept });
            }
        }
        let by_demand = said.iter().any(|(_, said)| matches!(said, Said::Declared { by_demand: true, .. }));
        if serves > 1 && by_demand {
            let what =
                format!("which servers of the fleet {fleet} it needs: it is spread over the {serves} kinds of them");
            found.left_out.push(what);
        }
        kinds
    }

    /// What each slot of a fleet has beside it; those of servers that were not there by a moment are none.
    fn alike(&self, all: &BTreeSet<SlotId>, until_ms: u64, types: &Types<'_>) -> BTreeMap<SlotId, Alike> {
        let known =
            |slot: &&SlotId| self.servers.get(slot.server.as_str()).is_some_and(|server| server.joined_ms <= until_ms);
        let there = || all.iter().filter(known).map(|slot| (slot, self.kind(slot, types)));
        let mut each = BTreeMap::<(&str, String), u16>::new();
        there().for_each(|(slot, (kind, _))| *each.entry((slot.server.as_str(), kind)).or_default() += 1);
        let of = |(slot, (kind, slot_type)): (&SlotId, (String, String))| {
            let each = each.get(&(slot.server.as_str(), kind.clone())).copied().unwrap_or(1);
            (slot.clone(), Alike { each, kind, slot_type })
        };
        there().map(of).collect()
    }

    fn is_device(&self, slot: &SlotId) -> bool {
        self.servers.get(slot.server.as_str()).is_some_and(|server| usize::from(slot.index) < server.devices)
    }

    /// The kind of a slot: its type; where servers of one type compute different bits, with what they compute. And the type alone.
    fn kind(&self, slot: &SlotId, types: &Types<'_>) -> (String, String) {
        let Some(server) = self.servers.get(slot.server.as_str()) else {
            return (NO_TYPE.to_owned(), NO_TYPE.to_owned());
        };
        let slot_type = server.named(self.is_device(slot));
        let differs = types.classes.get(&slot_type).is_some_and(|classes| classes.len() > 1);
        let class = server.class.get(..8).unwrap_or(&server.class);
        (if differs { format!("{slot_type}-{class}") } else { slot_type.clone() }, slot_type)
    }

    /// Slots that a fleet keeps of each group, whenever that changes: by what it said, and in which group each slot is that it ever declared.
    fn kept(&self, said: &[(u64, Said)], places: &BTreeMap<&SlotId, usize>, sizes: &[u64]) -> Vec<(u64, Vec<u64>)> {
        let joined = |slot: &SlotId| self.servers.get(slot.server.as_str()).map_or(u64::MAX, |server| server.joined_ms);
        // A server that joins later is none of the fleet's until then.
        let mut joins: Vec<(u64, &SlotId, usize)> =
            places.iter().map(|(slot, place)| (joined(slot), *slot, *place)).collect();
        joins.sort_unstable();
        let (mut now, mut found) = (Now::new(sizes.len()), Vec::<(u64, Vec<u64>)>::new());
        let (mut said, mut joins) = (said.iter().peekable(), joins.into_iter().peekable());
        while let Some(at_ms) = said.peek().map(|(ms, _)| *ms).into_iter().chain(joins.peek().map(|(ms, ..)| *ms)).min()
        {
            while let Some((_, slot, place)) = joins.next_if(|(ms, ..)| *ms <= at_ms) {
                now.join(slot, place);
            }
            while let Some((_, said)) = said.next_if(|(ms, _)| *ms <= at_ms) {
                now.hear(said);
            }
            let lent = match now.lendable() {
                Some(lendable) => spread(lendable, &now.declared.of),
                None => now.lent.of.clone(),
            };
            let kept: Vec<u64> = sizes.iter().zip(lent).map(|(size, lent)| size.saturating_sub(lent)).collect();
            if found.last().is_none_or(|(_, last)| *last != kept) {
                found.push((at_ms, kept));
            }
        }
        found
    }
}

impl Server {
    /// The type of its devices, or of its other slots, which have none beside devices.
    fn named(&self, device: bool) -> String {
        let named = self.slot_type.clone().filter(|_| device || self.devices == 0);
        named.unwrap_or_else(|| if device { "device" } else { NO_TYPE }.to_owned())
    }
}

/// What a fleet had declared at any time between two moments.
struct Declared {
    slots: BTreeSet<SlotId>,
    deadline_ms: Option<u64>,
}

fn declared(said: &[(u64, Said)], (from_ms, until_ms): (u64, u64)) -> Declared {
    let mut found = Declared { slots: BTreeSet::new(), deadline_ms: None };
    for (at_ms, said) in said.iter().filter(|(at_ms, _)| *at_ms <= until_ms) {
        if let Said::Declared { slots, deadline_ms, .. } = said {
            // Over when the window begins.
            if *at_ms <= from_ms {
                found.slots.clear();
            }
            found.slots.extend(slots.iter().cloned());
            found.deadline_ms = Some(*deadline_ms);
        }
    }
    found
}

impl Now {
    fn new(groups: usize) -> Self {
        let none = || Counted { slots: BTreeSet::new(), of: vec![0; groups] };
        Self {
            there: BTreeMap::new(),
            declared: none(),
            by_demand: false,
            needs: None,
            recalled: None,
            lent: none(),
            taken: BTreeSet::new(),
        }
    }

    /// The server of a slot of a group has joined.
    fn join(&mut self, slot: &SlotId, group: usize) {
        self.there.insert(slot.clone(), group);
        for counted in [&mut self.declared, &mut self.lent] {
            if counted.slots.contains(slot) {
                counted.of[group] += 1;
            }
        }
    }

    fn hear(&mut self, said: &Said) {
        match said {
            Said::Declared { slots, by_demand, .. } => {
                self.by_demand = *by_demand;
                self.taken.retain(|slot| slots.contains(slot));
                self.lent.retain(slots, &self.there);
                self.declared.retain(slots, &self.there);
                slots.iter().for_each(|slot| self.declared.add(slot, &self.there));
            }
            Said::Needs(needed) => self.needs = Some(*needed),
            Said::Recalled(slots) => self.recalled = Some(*slots),
            Said::Released => self.recalled = None,
            Said::Offered(slots) => {
                for slot in slots {
                    self.taken.remove(slot);
                    self.lent.add(slot, &self.there);
                }
            }
            Said::Reclaimed { slot, named } => {
                self.lent.remove(slot, &self.there);
                if *named {
                    self.taken.insert(slot.clone());
                }
            }
        }
    }

    /// Slots that it does not need, where that is what it lends; none of one that lends what it names.
    fn lendable(&self) -> Option<u64> {
        let needs = self.needs.filter(|_| self.by_demand)?;
        let all = self.declared.slots.len() as u64;
        let held = self.recalled.map_or(0, |slots| slots.unwrap_or(all));
        Some(all.saturating_sub(needs.max(held).max(self.taken.len() as u64)))
    }
}

impl Counted {
    fn add(&mut self, slot: &SlotId, there: &BTreeMap<SlotId, usize>) {
        if self.slots.insert(slot.clone())
            && let Some(group) = there.get(slot)
        {
            self.of[*group] += 1;
        }
    }

    fn remove(&mut self, slot: &SlotId, there: &BTreeMap<SlotId, usize>) {
        if self.slots.remove(slot)
            && let Some(group) = there.get(slot)
        {
            self.of[*group] -= 1;
        }
    }

    fn retain(&mut self, slots: &BTreeSet<SlotId>, there: &BTreeMap<SlotId, usize>) {
        let others: Vec<SlotId> = self.slots.difference(slots).cloned().collect();
        others.iter().for_each(|slot| self.remove(slot, there));
    }
}

/// So many slots over groups of so many, as evenly as whole ones can be.
fn spread(count: u64, groups: &[u64]) -> Vec<u64> {
    let all: u64 = groups.iter().sum();
    let count = count.min(all);
    let mut before = 0;
    let share = |group: &u64| {
        let begun = (count * before).checked_div(all).unwrap_or(0);
        before += group;
        (count * before).checked_div(all).unwrap_or(0) - begun
    };
    groups.iter().map(share).collect()
}

/// Adds servers to those that are like them.
fn merge(cluster: &mut Cluster, group: Group) {
    let like = |other: &&mut Group| other.slots == group.slots && other.kind == group.kind;
    match cluster.groups.iter_mut().find(like) {
        Some(known) => known.servers += group.servers,
        None => cluster.groups.push(group),
    }
}

fn slots(of: &Value) -> impl Iterator<Item = SlotId> + '_ {
    of.as_array().into_iter().flatten().filter_map(|slot| slot.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    const FOREVER: (u64, u64) = (1_000, 9_000);

    fn between(facts: &[(u64, Value)]) -> Fleeting {
        let mut fleets = Fleets::default();
        facts.iter().for_each(|(at_ms, fact)| fleets.fact(*at_ms, fact["fact"].as_str().unwrap(), fact));
        fleets.between(FOREVER)
    }

    fn server(name: &str, slot_type: &str) -> (u64, Value) {
        (0, json!({"fact": "agent_joined", "server": name, "slots": 4, "class": "c", "slot_type": slot_type}))
    }

    fn declared(fleet: &str, offers: &str, slots: &[&str]) -> Value {
        json!({"fact": "fleet_declared", "fleet": fleet, "offers": offers, "slots": slots, "reclaim_deadline_ms": 500})
    }

    fn of(fleet: &str, fact: &str, more: Value) -> Value {
        let mut of = json!({"fact": fact, "fleet": fleet});
        more.as_object().unwrap().iter().for_each(|(key, value)| of[key] = value.clone());
        of
    }

    fn needs(needed: u64) -> Value {
        of("f", "demand_accepted", json!({"sequence": 1, "needed": needed}))
    }

    #[test]
    fn a_recall_is_a_need_until_it_is_over() {
        let found = between(&[
            server("s", "t4"),
            (1_000, declared("f", "by_demand", &["s/0", "s/1", "s/2", "s/3"])),
            (1_000, needs(1)),
            (3_000, of("f", "fleet_recalled", json!({"slots": {"slots": 3}}))),
            (4_000, needs(2)),
            (5_000, of("f", "fleet_recalled", json!({"slots": "all"}))),
            (6_000, of("f", "fleet_released", json!({}))),
        ]);
        assert_eq!(found.serving[0].kept, [(0, 1), (2_000, 3), (4_000, 4), (5_000, 2), (8_000, 2)]);
        assert_eq!((found.serving[0].group.to_string(), found.left_out), ("1x4:t4".to_owned(), Vec::new()));
    }

    #[test]
    fn slots_offered_and_asked_back_by_name_are_a_curve_of_each_kind_of_server() {
        let reclaimed = |slot: &str, cause: &str| of("f", "slot_reclaimed", json!({"slot": slot, "cause": cause}));
        let offered = |slots: &[&str]| of("f", "slots_offered", json!({"slots": slots}));
        let found = between(&[
            server("s", "t4"),
            server("u", "v100"),
            (1_000, declared("f", "explicit", &["s/0", "s/1", "u/0"])),
            (2_000, offered(&["s/0", "u/0"])),
            (3_000, reclaimed("u/0", "named")),
            (4_000, offered(&["s/1"])),
            (5_000, reclaimed("s/0", "direct")),
        ]);
        let named: Vec<_> = found.serving.iter().map(|of| (of.name.as_str(), of.group.to_string())).collect();
        assert_eq!(named, [("f", "1x1:v100".to_owned()), ("f/2", "1x2:t4".to_owned())]);
        assert_eq!(found.serving[0].kept.iter().map(|(_, kept)| *kept).collect::<Vec<_>>(), [1, 0, 1, 1, 1, 1]);
        assert_eq!(found.serving[1].kept, [(0, 2), (1_000, 1), (2_000, 1), (3_000, 0), (4_000, 1), (8_000, 1)]);
        assert!(found.left_out[0].starts_with("how fast slots of t4, v100 are"), "{:?}", found.left_out);
    }

    #[test]
    fn slots_count_from_when_their_server_is_there_as_long_as_they_are_declared() {
        let offered = |slots: &[&str]| of("f", "slots_offered", json!({"slots": slots}));
        let joins = |at_ms: u64, name: &str| (at_ms, server(name, "t4").1);
        let found = between(&[
            joins(0, "s"),
            (1_000, declared("f", "explicit", &["s/0", "s/1", "u/0", "u/1"])),
            (1_000, offered(&["s/0", "u/0", "u/1"])),
            joins(2_000, "u"),
            (3_000, of("f", "slot_reclaimed", json!({"slot": "u/0", "cause": "direct"}))),
            (4_000, declared("f", "explicit", &["s/0", "s/1", "u/0"])),
            (5_000, declared("f", "by_demand", &["s/0", "s/1", "u/0", "u/1"])),
            (5_000, needs(1)),
            (6_000, offered(&["u/0"])),
        ]);
        assert_eq!(
            found.serving[0].kept,
            [(0, 3), (1_000, 1), (2_000, 2), (3_000, 3), (4_000, 1), (8_000, 1)],
            "{:?}",
            found.left_out
        );
    }

    #[test]
    fn a_signal_that_repeats_the_need_is_not_kept() {
        let mut fleets = Fleets::default();
        for (at_ms, needed) in [1, 1, 2, 2, 2, 1].into_iter().enumerate() {
            fleets.fact(at_ms as u64, "demand_accepted", &needs(needed));
        }
        assert_eq!(fleets.said["f"].iter().map(|(at_ms, _)| *at_ms).collect::<Vec<_>>(), [0, 2, 5]);
    }

    #[test]
    fn no_two_groups_have_one_name_and_a_type_is_known_by_all_of_its_name() {
        let needed = |fleet: &str, needed: u64| of(fleet, "demand_accepted", json!({"needed": needed}));
        let measured = json!([{"slot_type": "a100", "unit_us": 20}, {"slot_type": "t4", "unit_us": 70}]);
        let found = between(&[
            server("s", "a100"),
            server("u", "a100-80gb"),
            (1_000, declared("f", "by_demand", &["s/0", "u/0"])),
            (1_000, needed("f", 2)),
            (1_000, declared("f-2", "by_demand", &["s/1", "s/2"])),
            (1_000, needed("f-2", 1)),
            (2_000, needed("f", 0)),
            (2_000, json!({"fact": "types_measured", "job": "j", "times": measured})),
        ]);
        let mut names: Vec<&str> = found.serving.iter().map(|of| of.name.as_str()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), count), (3, 3), "{:?}", found.serving);
        let unknown = found.left_out.iter().find(|what| what.starts_with("how fast slots of a100-80gb are"));
        assert!(unknown.is_some(), "{:?}", found.left_out);
    }

    #[test]
    fn what_is_taken_back_by_name_stays_with_a_fleet_that_offers_by_demand_until_it_is_offered_again() {
        let found = between(&[
            server("s", "t4"),
            (1_000, declared("f", "by_demand", &["s/0", "s/1"])),
            (1_000, needs(0)),
            (2_000, of("f", "slot_reclaimed", json!({"slot": "s/0", "cause": "direct"}))),
            // A forecast is no need.
            (3_000, of("f", "slot_reclaimed", json!({"slot": "s/1", "cause": "forecast"}))),
            (4_000, of("f", "slots_offered", json!({"slots": ["s/0", "s/1"]}))),
        ]);
        assert_eq!(found.serving[0].kept, [(0, 0), (1_000, 1), (3_000, 0), (8_000, 0)]);
    }

    #[test]
    fn servers_that_lend_all_the_time_are_the_cluster_and_what_lends_never_is_said() {
        let found = between(&[
            server("s", "t4"),
            server("u", "t4"),
            server("v", "t4"),
            (1_000, declared("a", "by_demand", &["s/0", "s/1"])),
            (1_000, of("a", "demand_accepted", json!({"needed": 0}))),
            (1_000, declared("b", "by_demand", &["s/2", "s/3", "u/0", "u/1", "gone/0"])),
            (1_000, of("b", "demand_accepted", json!({"needed": 0}))),
            (1_000, declared("c", "by_demand", &["v/0"])),
            (2_000, json!({"fact": "agent_gone", "server": "s"})),
        ]);
        assert_eq!((found.cluster.to_string(), found.serving), ("3x2:t4".to_owned(), Vec::new()));
        assert_eq!(
            found.left_out,
            [
                "slots of the fleet c of which it lent none (1)",
                "slots whose server was never there (1)",
                "that servers have slots of several fleets: they are a server of each (1)",
                "that servers were given up: they are there all the time (1)",
            ]
        );
    }

    #[test]
    fn types_are_as_fast_beside_each_other_as_jobs_were_measured_to_be() {
        let measured = |job: &str, times: Value| (2_000, json!({"fact": "types_measured", "job": job, "times": times}));
        let found = between(&[
            server("s", "t4"),
            server("u", "v100"),
            (1_000, declared("a", "by_demand", &["s/0", "u/0"])),
            (1_000, of("a", "demand_accepted", json!({"needed": 0}))),
            measured("j", json!([{"slot_type": "t4", "unit_us": 9_000}])),
            measured("j", json!([{"slot_type": "t4", "unit_us": 9_000}, {"slot_type": "v100", "unit_us": 3_000}])),
            measured("k", json!([{"slot_type": "t4", "unit_us": 70}, {"slot_type": "v100", "unit_us": 20}])),
        ]);
        // The same number of jobs know both: the last by name is what others are compared with.
        assert_eq!((found.cluster.to_string().as_str(), found.left_out), ("1x1:t4@0.333,1x1:v100", Vec::new()));
    }

    #[test]
    fn a_need_is_spread_over_all_kinds_of_a_fleets_servers() {
        assert_eq!(spread(5, &[4, 2]), [3, 2]);
        assert_eq!((spread(9, &[4, 2]), spread(3, &[]), spread(1, &[0])), (vec![4, 2], vec![], vec![0]));
    }
}
