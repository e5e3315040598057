//! All declared slots, and beside them what plans ask: which slots of each server could be had and which are idle, and how many there are of each kind.
//!
//! The second follows from the first and from the servers. It is kept in step here, where slots and servers change, because going through ten thousand slots
//! for each plan costs more than the plan; it is no part of a state's bytes, nor of what makes two states equal. A state that was read from bytes
//! has it from the first fact on ([`Slots::knows_servers`]).

use super::fleet::{Server, Slot, SlotKind};
use crate::table::{Changed, Table};
use events_schema::slot_type::SlotType;
use events_schema::{Digest, FleetId, ServerId, SlotId};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

/// Slots by id.
#[derive(Clone, Default)]
pub(crate) struct Slots {
    all: Table<SlotId, Slot>,
    of_server: Table<ServerId, OfServer>,
    totals: Arc<BTreeMap<SlotKind, Totals>>,
    /// Read from bytes, in which nothing stands of servers.
    without_servers: bool,
}

/// How many slots of one kind there are on servers that are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    known: u32,
    /// That fleets declare.
    pub declared: u32,
    /// That we may use, on servers that are there.
    pub usable: u32,
}

/// What counts of a server for its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Host {
    class: Digest,
    /// Its first slots are devices.
    devices: u32,
    slots: u32,
    connected: bool,
    /// The types of its devices and of its other slots.
    types: [Option<SlotType>; 2],
}

impl Host {
    fn of(server: &Server) -> Self {
        let (devices, slots) = (server.devices.len() as u32, server.slots.into());
        let types = [server.type_of(true), server.type_of(false)];
        Self { class: server.class, devices, slots, connected: server.connected, types }
    }

    /// The kind of its devices, or of its other slots.
    fn kind_of(&self, device: bool) -> SlotKind {
        let [of_devices, of_others] = self.types;
        SlotKind { class: self.class, device, guest: false, slot_type: if device { of_devices } else { of_others } }
    }

    fn kind(&self, index: u16) -> SlotKind {
        self.kind_of(self.is_device(index))
    }

    fn is_device(&self, index: u16) -> bool {
        u32::from(index) < self.devices
    }

    /// Whether something can be started on a slot of it.
    fn has(&self, index: u16) -> bool {
        self.connected && u32::from(index) < self.slots
    }
}

/// The slots of one server, by their number there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OfServer {
    /// That are declared, or on their way back to a fleet that does not declare them any more.
    pub known: Places,
    /// That each fleet declares, by its name; fleets that declare none of them are left out.
    declared: Vec<(FleetId, Places)>,
    /// That we may use, whoever does: lent, and not in quarantine.
    pub usable: Places,
    /// That nobody uses.
    pub idle: Places,
    /// The server, if it is known.
    host: Option<Host>,
}

impl OfServer {
    /// Those that fleets declare of which this is true.
    pub fn of_fleets(&self, wanted: impl Fn(&FleetId) -> bool) -> Places {
        let of = self.declared.iter().filter(|(fleet, _)| wanted(fleet));
        of.fold(Places::default(), |all, (_, places)| all.with(places))
    }

    /// Its idle slots on which something can be started, by kind.
    pub fn idle_by_kind(&self) -> impl Iterator<Item = (SlotKind, Places)> {
        let host = self.host.filter(|host| host.connected && !self.idle.is_empty());
        let kinds = host.map(|host| {
            let there = self.idle.clone().cut(host.slots).0;
            let (devices, others) = there.cut(host.devices);
            [(true, devices), (false, others)].map(|(device, places)| (host.kind_of(device), places))
        });
        kinds.into_iter().flatten().filter(|(_, places)| !places.is_empty())
    }
}

/// A set of slot numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// 0 to 63, a bit each: few servers have more.
    low: u64,
    /// The others, 64 to a word.
    high: Vec<u64>,
}

impl Places {
    /// Puts a number in or takes it out.
    pub fn set(&mut self, index: u16, is_in: bool) {
        let (word, bit) = (usize::from(index / 64), 1u64 << (index % 64));
        if word > self.high.len() && is_in {
            self.high.resize(word, 0);
        }
        let word = if word == 0 { Some(&mut self.low) } else { self.high.get_mut(word - 1) };
        if let Some(word) = word {
            *word = if is_in { *word | bit } else { *word & !bit };
        }
        self.trim();
    }

    /// What is in it or in another one.
    fn with(mut self, other: &Self) -> Self {
        self.low |= other.low;
        if self.high.len() < other.high.len() {
            self.high.resize(other.high.len(), 0);
        }
        self.high.iter_mut().zip(&other.high).for_each(|(word, other)| *word |= other);
        self
    }

    /// What is in it and in another one, and what is in it alone.
    pub fn split(mut self, other: &Self) -> (Self, Self) {
        let mut both = self.clone();
        both.low &= other.low;
        self.low &= !other.low;
        for (place, (both, alone)) in both.high.iter_mut().zip(&mut self.high).enumerate() {
            let other = other.high.get(place).copied().unwrap_or_default();
            (*both, *alone) = (*both & other, *alone & !other);
        }
        both.trim();
        self.trim();
        (both, self)
    }

    /// Its numbers below one, and those from there on.
    fn cut(mut self, at: u32) -> (Self, Self) {
        let below = |word: u32| u64::MAX.checked_shr(64 * (word + 1) - at.min(64 * (word + 1))).unwrap_or(0);
        let mut begin = self.clone();
        begin.low &= below(0);
        self.low &= !below(0);
        for (word, (begin, rest)) in (1..).zip(begin.high.iter_mut().zip(&mut self.high)) {
            (*begin, *rest) = (*begin & below(word), *rest & !below(word));
        }
        begin.trim();
        self.trim();
        (begin, self)
    }

    /// Of the same numbers there is one form.
    fn trim(&mut self) {
        while self.high.last() == Some(&0) {
            self.high.pop();
        }
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.low).chain(self.high.iter().copied())
    }

    /// Whether a number is in it.
    pub fn contains(&self, index: u16) -> bool {
        self.words().nth(usize::from(index / 64)).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.is_empty()
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// Takes its lowest number out.
    pub fn pop_first(&mut self) -> Option<u16> {
        let first = self.iter().next()?;
        self.set(first, false);
        Some(first)
    }

    /// Its numbers, rising.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0u16..).step_by(64).zip(self.words()).flat_map(|(begin, word)| {
            let later = std::iter::successors(Some(word), |word| Some(word & (word.wrapping_sub(1))));
            later.take_while(|word| *word != 0).map(move |word| begin + word.trailing_zeros() as u16)
        })
    }
}

impl FromIterator<u16> for Places {
    fn from_iter<I: IntoIterator<Item = u16>>(numbers: I) -> Self {
        let mut places = Self::default();
        numbers.into_iter().for_each(|number| places.set(number, true));
        places
    }
}

impl Slots {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&self, id: &SlotId) -> Option<&Slot> {
        self.all.get(id)
    }

    /// What there is of each of these: see [`Table::each`].
    pub fn each<'a, 'b, I>(&'a self, ids: I) -> impl Iterator<Item = Option<&'a Slot>> + use<'a, 'b, I>
    where
        I: Iterator<Item = &'b SlotId>,
    {
        self.all.each(ids)
    }

    /// All of them, by server and number.
    pub fn iter(&self) -> impl Iterator<Item = (&SlotId, &Slot)> {
        self.all.iter()
    }

    pub fn range_from<'a>(&'a self, from: Bound<&SlotId>) -> impl Iterator<Item = (&'a SlotId, &'a Slot)> + use<'a> {
        self.all.range_from(from)
    }

    /// See [`Table::changed`].
    pub fn changed<'a>(&'a self, before: &'a Self) -> Vec<Changed<'a, SlotId, Slot>> {
        self.all.changed(&before.all)
    }

    /// How many there are of each kind, on servers that are known.
    pub fn totals(&self) -> impl Iterator<Item = (&SlotKind, &Totals)> {
        self.totals.iter()
    }

    /// Whether we may use a slot, and its server is there.
    pub fn is_usable(&self, id: &SlotId) -> bool {
        let there = self.of_server.get(&id.server).filter(|of| of.usable.contains(id.index));
        there.and_then(|of| of.host).is_some_and(|host| host.has(id.index))
    }

    /// Whether [`Slots::totals`] and [`Slots::servers`] know the servers: not of what was just read from bytes.
    pub fn knows_servers(&self) -> bool {
        !self.without_servers
    }

    /// Notes all servers, of what was just read from bytes.
    pub fn note_servers<'a>(&mut self, servers: impl Iterator<Item = (&'a ServerId, &'a Server)>) {
        self.without_servers = false;
        servers.for_each(|(id, server)| self.note_server(id, Some(server)));
    }

    /// Notes what a server is, or that it is forgotten.
    pub fn note_server(&mut self, id: &ServerId, server: Option<&Server>) {
        let host = server.map(Host::of);
        if self.of_server.get(id).and_then(|known| known.host) == host {
            return;
        }
        let mut known = self.of_server.take(id).unwrap_or_default();
        self.count(&known, false);
        known.host = host;
        self.count(&known, true);
        if known.host.is_some() || !known.known.is_empty() {
            self.of_server.insert(id.clone(), known);
        }
    }

    /// Counts all slots of a server in, or out.
    fn count(&mut self, of: &OfServer, is_in: bool) {
        let Some(host) = of.host else { return };
        let nothing = Marks::default();
        let change = |marks| if is_in { (nothing, marks) } else { (marks, nothing) };
        let changes: Vec<Change> = of.known.iter().map(|index| (index, change(of.marks(index)))).collect();
        recount(&mut self.totals, host, &changes);
    }

    /// What there is on each server that has any or is known, by server.
    pub fn servers(&self) -> impl Iterator<Item = (&ServerId, &OfServer)> {
        self.of_server.iter()
    }

    /// Changes a slot; nothing if it is not there.
    pub fn change<R>(&mut self, id: &SlotId, to: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        let slot = self.all.get_mut(id)?;
        let (before, fleet) = (Marks::of(slot), slot.fleet.clone());
        let result = to(slot);
        let change = (before, Marks::of(slot));
        let is_moved = fleet != slot.fleet;
        let fleet = is_moved.then(|| slot.fleet.clone());
        if is_moved || change.0 != change.1 {
            self.mark(&id.server, &[(id.index, change)], fleet);
        }
        Some(result)
    }

    /// Changes slots, but for whose they are; nothing of those that are not there. What is noted of a server is written once for those of its slots that
    /// follow each other.
    pub fn change_each<'a>(
        &mut self,
        ids: impl Iterator<Item = &'a SlotId>,
        mut to: impl FnMut(&'a SlotId, &mut Slot),
    ) {
        let mut changed: Vec<(&ServerId, Change)> = Vec::new();
        self.all.change_each(ids, |id, slot| {
            let before = Marks::of(slot);
            to(id, slot);
            let now = Marks::of(slot);
            if before != now {
                changed.push((&id.server, (id.index, (before, now))));
            }
        });
        let mut changes = Vec::new();
        for of_server in changed.chunk_by(|(one, _), (next, _)| one == next) {
            changes.clear();
            changes.extend(of_server.iter().map(|(_, change)| *change));
            of_server.first().into_iter().for_each(|(server, _)| self.mark(server, &changes, None));
        }
    }

    pub fn insert(&mut self, id: SlotId, slot: Slot) {
        let change = (self.marks(&id), Marks::of(&slot));
        self.mark(&id.server, &[(id.index, change)], Some(slot.fleet.clone()));
        self.all.insert(id, slot);
    }

    pub fn remove(&mut self, id: &SlotId) {
        self.all.remove(id);
        let change = (self.marks(id), Marks::default());
        self.mark(&id.server, &[(id.index, change)], Some(None));
    }

    /// What is noted of a slot.
    fn marks(&self, id: &SlotId) -> Marks {
        self.of_server.get(&id.server).map(|of| of.marks(id.index)).unwrap_or_default()
    }

    /// Notes what has become of slots of a server, and whose they are now, if that is another one.
    fn mark(&mut self, server: &ServerId, changes: &[Change], fleet: Option<Option<FleetId>>) {
        if !self.of_server.contains(server) {
            self.of_server.insert(server.clone(), OfServer::default());
        }
        let Some(of) = self.of_server.get_mut(server) else { return };
        if let Some(host) = of.host {
            recount(&mut self.totals, host, changes);
        }
        for (index, (_, now)) in changes {
            of.set(*index, *now);
            fleet.iter().for_each(|fleet| of.set_fleet(*index, fleet.as_ref()));
        }
        if of.known.is_empty() && of.host.is_none() {
            self.of_server.remove(server);
        }
    }
}

/// Counts slots of a server as what they are now, and no more as what they were before.
fn recount(totals: &mut Arc<BTreeMap<SlotKind, Totals>>, host: Host, changes: &[Change]) {
    // Slots of a kind stand side by side.
    for alike in changes.chunk_by(|(one, _), (next, _)| host.is_device(*one) == host.is_device(*next)) {
        let Some((first, _)) = alike.iter().find(|(_, (before, now))| before.known || now.known) else { continue };
        let (kind, totals) = (host.kind(*first), Arc::make_mut(totals));
        let of = totals.entry(kind).or_default();
        for (index, (before, now)) in alike {
            let change = |count: &mut u32, which: fn(&Marks) -> bool, is_there: bool| {
                let counts = |marks: &Marks| u32::from(is_there && which(marks));
                *count = *count + counts(now) - counts(before);
            };
            change(&mut of.known, |marks| marks.known, true);
            change(&mut of.declared, |marks| marks.declared, true);
            change(&mut of.usable, |marks| marks.usable, host.has(*index));
        }
        if of.known == 0 {
            totals.remove(&kind);
        }
    }
}

/// What [`OfServer`] says of one slot, but for which fleet declares it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Marks {
    known: bool,
    declared: bool,
    usable: bool,
    idle: bool,
}

/// A slot by its number on its server, what it was and what it is.
type Change = (u16, (Marks, Marks));

impl Marks {
    fn of(slot: &Slot) -> Self {
        Self { known: true, declared: slot.fleet.is_some(), usable: is_usable(slot), idle: slot.is_idle() }
    }
}

fn is_usable(slot: &Slot) -> bool {
    slot.is_lent() && !slot.is_quarantined()
}

impl OfServer {
    fn marks(&self, index: u16) -> Marks {
        let is_in = |places: &Places| places.contains(index);
        let declared = self.declared.iter().any(|(_, places)| is_in(places));
        Marks { known: is_in(&self.known), declared, usable: is_in(&self.usable), idle: is_in(&self.idle) }
    }

    fn set(&mut self, index: u16, now: Marks) {
        self.known.set(index, now.known);
        self.usable.set(index, now.usable);
        self.idle.set(index, now.idle);
    }

    /// Notes which fleet declares a slot.
    fn set_fleet(&mut self, index: u16, fleet: Option<&FleetId>) {
        for (_, places) in &mut self.declared {
            places.set(index, false);
        }
        if let Some(fleet) = fleet {
            let place = self.declared.binary_search_by(|(known, _)| known.cmp(fleet)).unwrap_or_else(|place| {
                self.declared.insert(place, (fleet.clone(), Places::default()));
                place
            });
            self.declared[place].1.set(index, true);
        }
        self.declared.retain(|(_, places)| !places.is_empty());
    }
}

impl From<Table<SlotId, Slot>> for Slots {
    fn from(all: Table<SlotId, Slot>) -> Self {
        let mut slots = Self::default();
        for (id, slot) in all.iter() {
            slots.mark(&id.server, &[(id.index, (Marks::default(), Marks::of(slot)))], Some(slot.fleet.clone()));
        }
        (slots.all, slots.without_servers) = (all, true);
        slots
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}

impl<C> Encode<C> for Slots {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), minicbor::encode::Error<W::Error>> {
        self.all.encode(e, ctx)
    }
}

impl<'b, C> Decode<'b, C> for Slots {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, minicbor::decode::Error> {
        Table::decode(d, ctx).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::SlotState;
    use events_schema::device::SlotDevice;
    use events_schema::{TimeMs, batch};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn places_are_a_set(changes in proptest::collection::vec((0u16..200, any::<bool>()), 0..100)) {
            let (mut places, mut set) = (Places::default(), BTreeSet::new());
            for (index, is_in) in changes {
                places.set(index, is_in);
                if is_in { set.insert(index); } else { set.remove(&index); }
                prop_assert_eq!(places.contains(index), is_in);
            }
            prop_assert!(places.iter().eq(set.iter().copied()));
            prop_assert_eq!(places.len(), set.len());
            prop_assert_eq!(places.is_empty(), set.is_empty());
            prop_assert_eq!(&places, &set.iter().copied().collect());
            for at in [0, 1, 63, 64, 65, 100, 128, 200, u16::MAX] {
                let (below, from): (BTreeSet<u16>, BTreeSet<u16>) = set.iter().copied().partition(|index| *index < at);
                prop_assert_eq!(places.clone().cut(at.into()), (below.into_iter().collect(), from.into_iter().collect()));
            }
            prop_assert_eq!(places.clone().cut(u32::MAX), (places.clone(), Places::default()));
            prop_assert!(std::iter::from_fn(|| places.pop_first()).eq(set));
        }

        #[test]
        fn places_are_split_by_others(one in proptest::collection::btree_set(0u16..200, 0..60), other in proptest::collection::btree_set(0u16..200, 0..60)) {
            let places = |set: &BTreeSet<u16>| set.iter().copied().collect::<Places>();
            let (both, alone) = places(&one).split(&places(&other));
            prop_assert_eq!(both, one.intersection(&other).copied().collect());
            prop_assert_eq!(alone, one.difference(&other).copied().collect());
            prop_assert_eq!(places(&one).with(&places(&other)), one.union(&other).copied().collect());
        }

        #[test]
        fn what_is_noted_follows_from_slots_and_servers(changes in proptest::collection::vec((0u16..3, 0u16..5, 0u8..13), 0..60)) {
            let (mut slots, mut servers) = (Slots::default(), BTreeMap::new());
            for (number, index, change) in changes {
                let server = ServerId::parse(&format!("s{number}")).unwrap();
                let id = SlotId { server: server.clone(), index };
                match change {
                    0 => slots.remove(&id),
                    1 => slots.insert(id, Slot::unoffered(fleet(index % 2), TimeMs(1))),
                    2 => drop(slots.change(&id, |slot| slot.state = SlotState::Offered)),
                    3 => drop(slots.change(&id, |slot| slot.fleet = None)),
                    4 => drop(slots.change(&id, |slot| slot.quarantined = Some(String::new()))),
                    11 => drop(slots.change(&id, |slot| slot.fleet = Some(fleet(2)))),
                    7 => drop(slots.change(&id, |slot| slot.diverged = Some(String::new()))),
                    12 => {
                        let ids: Vec<SlotId> = slots.iter().map(|(id, _)| id.clone()).collect();
                        slots.change_each(ids.iter(), |id, slot| if id.index == index { slot.state = SlotState::Borrowed });
                    }
                    5 => drop(slots.change(&id, |slot| slot.state = SlotState::Unoffered)),
                    6 => drop(servers.remove(&server)),
                    _ => drop(servers.insert(server.clone(), host(change, index))),
                }
                slots.note_server(&server, servers.get(&server));
            }
            let mut again = Slots::from(slots.all.clone());
            again.note_servers(servers.iter());
            prop_assert!(slots.servers().eq(again.servers()) && slots.totals().eq(again.totals()));
            for (server, known) in slots.servers() {
                let all = slots.iter().filter(|(id, _)| id.server == *server).collect::<Vec<_>>();
                let those = |which: fn(&Slot) -> bool| all.iter().filter(|(_, slot)| which(slot)).map(|(id, _)| id.index).collect::<Vec<_>>();
                prop_assert_eq!(known.known.iter().collect::<Vec<_>>(), those(|_| true));
                prop_assert_eq!(known.of_fleets(|_| true).iter().collect::<Vec<_>>(), those(|slot| slot.fleet.is_some()));
                for number in 0..3 {
                    let of = known.of_fleets(|of| *of == fleet(number));
                    let declared = all.iter().filter(|(_, slot)| slot.fleet == Some(fleet(number))).map(|(id, _)| id.index);
                    prop_assert!(of.iter().eq(declared));
                }
                prop_assert_eq!(known.usable.iter().collect::<Vec<_>>(), those(usable));
                prop_assert_eq!(known.idle.iter().collect::<Vec<_>>(), those(Slot::is_idle));
                let there = |id: &SlotId| servers.get(server).is_some_and(|server| server.connected && id.index < server.slots);
                let idle = all.iter().filter(|(id, slot)| slot.is_idle() && there(id)).count();
                prop_assert_eq!(known.idle_by_kind().map(|(_, places)| places.len()).sum::<usize>(), idle);
            }
            let known = || slots.iter().filter_map(|(id, slot)| Some((id, slot, servers.get(&id.server)?)));
            let kinds: BTreeSet<SlotKind> = known().map(|(id, _, server)| server.kind(id.index)).collect();
            prop_assert!(slots.totals().map(|(kind, _)| *kind).eq(kinds));
            for (kind, totals) in slots.totals() {
                let of = || known().filter(|(id, _, server)| server.kind(id.index) == *kind);
                let there = |id: &SlotId, server: &Server| server.connected && id.index < server.slots;
                prop_assert_eq!(totals.declared as usize, of().filter(|(_, slot, _)| slot.fleet.is_some()).count());
                prop_assert_eq!(totals.usable as usize, of().filter(|(id, slot, server)| usable(slot) && there(id, server)).count());
            }
            let bytes = batch::to_bytes(&slots);
            prop_assert_eq!(&bytes, &batch::to_bytes(&slots.all));
            let mut read = batch::from_bytes::<Slots>(&bytes).unwrap();
            prop_assert!(!read.knows_servers());
            read.note_servers(servers.iter());
            prop_assert!(read.servers().eq(slots.servers()) && read.totals().eq(slots.totals()));
        }
    }

    fn fleet(number: u16) -> FleetId {
        FleetId::parse(&format!("f{number}")).unwrap()
    }

    fn usable(slot: &Slot) -> bool {
        slot.is_lent() && !slot.is_quarantined()
    }

    /// A server that is there or not, of one of two classes, with a few slots and devices.
    fn host(change: u8, slots: u16) -> Server {
        let device = SlotDevice { uuid: String::new(), name: String::new(), memory_bytes: 0, driver: String::new() };
        Server {
            incarnation: 1,
            reports_through: 0,
            slots,
            class: Digest([change; 32]),
            address: String::new(),
            connected: change > 8,
            gone_at: None,
            devices: vec![device; usize::from(slots / 2)],
            guests: false,
            slot_type: slots.is_multiple_of(3).then(|| "t4".parse().unwrap()),
        }
    }
}
