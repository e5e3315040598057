//! Connections between processes: each direction keeps its order, has a latency and so many bytes per second, and can be cut. Between executors a message
//! overtakes bulk that has not left yet: all of it, or, because pieces are long and kernels hold some of it, any part. A cut loses
//! nothing that was sent; it comes when the path is whole again, unless one end has given the connection up by then. A host that loses
//! power says nothing to the other ends: those stay half open.

use crate::numbers::Element;
use crate::schedule::{Place, Setup, SlowLink};
use crate::time::At;
use crate::world::{CONTROL, Event, Input, Pid, World};
use events_schema::orders::{AgentMessage, ControllerMessage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use workers_member::{Bulk, In, Kind as BulkKind, LinkId};
use workers_session::{Envelope, Peer};

/// A connection, of all that there ever were. Numbers rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A link between executors on which nothing came for so long is lost.
const SILENCE_MAX_MS: u64 = 5_000;
/// How often a link says that it lives.
const PING_MS: u64 = 1_000;
/// Attempts to connect, and how long one takes that meets nobody, a cut, or a process that does not answer.
const DIAL_ATTEMPTS: u32 = 5;
const REFUSED_US: u64 = 200_000;
const TIMED_OUT_US: u64 = 2_200_000;
/// What the handshake of a link takes, in latencies.
const HANDSHAKE_LATENCIES: u64 = 3;
/// What a control message weighs.
const MESSAGE_BYTES: u64 = 300;

/// What is on its way.
#[derive(Debug)]
pub enum Packet {
    Up(AgentMessage),
    Down(ControllerMessage),
    Say(Envelope),
    Bulk(Bulk, Vec<Element>),
    /// The other end is closed.
    Close(Option<controller_cell::LinkEnd>),
}

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From an agent, with its own number for it, to a controller.
    Stream(u64),
    /// Between executors.
    Link,
}

/// One end.
#[derive(Debug)]
pub struct End {
    pub pid: Pid,
    pub place: Place,
    pub open: bool,
    /// Of the executor, on a link.
    pub peer: Peer,
    /// When its process hears of the connection. Nothing that comes on it, nor its end, is heard before: in a real executor one thread tells of a
    /// link and then of what comes.
    told: At,
    heard: At,
}

#[derive(Debug, Default)]
struct Wire {
    queue: VecDeque<Packet>,
    /// When each place in the queue leaves its sender.
    leaves: VecDeque<At>,
    busy_until: At,
    last_arrival: At,
    /// Packets that came to a cut.
    stuck: usize,
}

impl Wire {
    /// How much a message overtakes at the most that is put now: bulk behind every other message that has not left yet.
    fn overtaken_max(&self, now: At) -> usize {
        let waits = |(packet, leaves): &(&Packet, &At)| matches!(packet, Packet::Bulk(..)) && **leaves > now;
        self.queue.iter().zip(&self.leaves).rev().take_while(waits).count()
    }
}

/// One connection; end 0 opened it. Wire `n` leads from end `n` to the other.
#[derive(Debug)]
pub struct Conn {
    pub kind: Kind,
    pub ends: [End; 2],
    wires: [Wire; 2],
    latency_us: u64,
}

/// Whether it is of a step's exchange, and not of a replica that somebody lacks.
fn is_sum(bulk: &Bulk) -> bool {
    matches!(bulk.kind, BulkKind::Partial(_) | BulkKind::Reduced)
}

/// All connections and cuts.
#[derive(Debug, Default)]
pub struct Net {
    conns: BTreeMap<ConnId, Conn>,
    made: u64,
    /// Directions that are cut, and how many faults cut them.
    cuts: BTreeMap<(Place, Place), u32>,
    pub slow: u64,
    pub slow_until: At,
    /// Bulk that messages overtook.
    pub overtaken: u64,
    /// A server whose links became slow.
    pub slow_link: Option<SlowLink>,
}

impl Net {
    /// Whether packets come through.
    #[must_use]
    pub fn is_whole(&self, from: Place, to: Place) -> bool {
        !self.cuts.contains_key(&(from, to))
    }

    /// What a connection between two hosts carries.
    #[must_use]
    pub fn bytes_per_s(&self, setup: &Setup, places: [Place; 2]) -> u64 {
        let slow = [setup.slow_link, self.slow_link].into_iter().flatten().filter(|slow| slow.is_between(places));
        slow.map(|slow| slow.bytes_per_s).chain([setup.link_bytes_per_s]).min().unwrap_or(1)
    }

    /// One connection.
    #[must_use]
    pub fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id)
    }

    /// Connections that have an open end at a process, with that end.
    fn of(&self, pid: Pid) -> Vec<(ConnId, usize)> {
        let ends = |(id, conn): (&ConnId, &Conn)| {
            (0..2).find(|end| conn.ends[*end].pid == pid && conn.ends[*end].open).map(|end| (*id, end))
        };
        self.conns.iter().filter_map(ends).collect()
    }
}

impl World {
    /// Cuts a direction between hosts.
    pub fn cut(&mut self, from: Place, to: Place) {
        *self.net.cuts.entry((from, to)).or_default() += 1;
        self.disturb([from, to]);
    }

    /// One fault less cuts a direction: what was stuck goes on.
    pub fn join(&mut self, from: Place, to: Place) {
        let Some(cuts) = self.net.cuts.get_mut(&(from, to)) else { return };
        *cuts -= 1;
        if *cuts > 0 {
            return;
        }
        self.net.cuts.remove(&(from, to));
        self.disturb([from, to]);
        let at = self.bus.now().plus_us(self.schedule.setup.latency_us);
        for (id, conn) in &mut self.net.conns {
            for wire in 0..2 {
                if (conn.ends[wire].place, conn.ends[1 - wire].place) == (from, to) {
                    for _ in 0..std::mem::take(&mut conn.wires[wire].stuck) {
                        self.bus.put(at, Event::Arrive(*id, wire));
                    }
                }
            }
        }
    }

    fn disturb(&mut self, places: [Place; 2]) {
        for place in places {
            let host = &mut self.hosts[usize::from(place)];
            host.disturbed_at = self.bus.now();
            if places.contains(&CONTROL) && place != CONTROL {
                host.heard_from = self.bus.now();
            }
        }
    }

    /// Makes everything between some hosts whole.
    pub fn join_all(&mut self, among: &BTreeSet<Place>) {
        let cuts: Vec<(Place, Place)> = self.net.cuts.keys().copied().collect();
        for (from, to) in cuts.into_iter().filter(|(from, to)| among.contains(from) && among.contains(to)) {
            self.net.cuts.insert((from, to), 1);
            self.join(from, to);
        }
    }

    /// A new connection from one process to another.
    pub fn connect(&mut self, kind: Kind, from: (Pid, Peer), to: (Pid, Peer)) -> Option<ConnId> {
        let place = |pid: &Pid| self.processes.get(pid).map(|process| process.place);
        let (places, now) = ([place(&from.0)?, place(&to.0)?], self.now());
        let accepted = now.plus_us(HANDSHAKE_LATENCIES * self.schedule.setup.latency_us);
        // Who dials is told of a link that the other one knows already.
        let told = if kind == Kind::Link { [accepted.plus_us(1), accepted] } else { [now; 2] };
        let end = |(pid, peer), place, told| End { pid, place, open: true, peer, told, heard: now };
        let wire = |last_arrival| Wire { last_arrival, ..Wire::default() };
        let id = ConnId(self.net.made);
        self.net.made += 1;
        let latency_us = self.schedule.setup.latency_us + self.random.below(self.schedule.setup.latency_us + 1);
        let (ends, wires) =
            ([end(from, places[0], told[0]), end(to, places[1], told[1])], [wire(told[1]), wire(told[0])]);
        self.net.conns.insert(id, Conn { kind, ends, wires, latency_us });
        if kind == Kind::Link {
            self.bus.put(now.plus_ms(PING_MS), Event::Look(id));
        }
        Some(id)
    }

    /// Tells the process at one end of a link that it is there, or that it has ended.
    fn tell_of_link(&mut self, id: ConnId, end: usize, news: fn(LinkId) -> In<Vec<Element>>) {
        let Some(conn) = self.net.conns.get(&id) else { return };
        let (End { pid, told, .. }, peer) = (&conn.ends[end], conn.ends[1 - end].peer);
        self.bus.put(*told, Event::To(*pid, Input::Member(news(LinkId { peer, number: id.0 }))));
    }

    /// Puts a packet on a connection; lost if this end is closed.
    pub fn post(&mut self, id: ConnId, from: usize, packet: Packet) {
        let now = self.now();
        let times = if now < self.net.slow_until { self.net.slow.max(1) } else { 1 };
        let Some(conn) = self.net.conns.get_mut(&id) else { return };
        if !conn.ends[from].open && !matches!(packet, Packet::Close(_)) {
            return;
        }
        let bytes = match &packet {
            Packet::Bulk(bulk, _) if self.schedule.setup.weightless_sums && is_sum(bulk) => 0,
            Packet::Bulk(bulk, _) => bulk.elements as u64 * self.schedule.setup.element_bytes,
            _ => MESSAGE_BYTES,
        };
        let jitter_us = self.schedule.setup.jitter_us;
        let later_us = if jitter_us > 0 { self.random.below(jitter_us) } else { 0 };
        let places = [conn.ends[0].place, conn.ends[1].place];
        let bytes_per_s = self.net.bytes_per_s(&self.schedule.setup, places);
        let Some(conn) = self.net.conns.get_mut(&id) else { return };
        let wire = &mut conn.wires[from];
        let sent = wire.busy_until.max(now).plus_us(bytes * 1_000_000 * times / bytes_per_s);
        wire.busy_until = sent;
        let arrival = sent.plus_us(conn.latency_us + later_us).max(wire.last_arrival);
        wire.last_arrival = arrival;
        let most = if let Packet::Say(_) = packet { wire.overtaken_max(now) } else { 0 };
        let overtaken = match most {
            0 => 0,
            _ if self.overtaking.one_in(2) => most,
            _ => self.overtaking.below(most as u64) as usize,
        };
        self.net.overtaken += overtaken as u64;
        wire.queue.insert(wire.queue.len() - overtaken, packet);
        wire.leaves.push_back(sent);
        self.bus.put(arrival, Event::Arrive(id, from));
    }

    /// Closes one end; the other hears of it, if anything comes through and the host still speaks.
    pub fn close(&mut self, id: ConnId, end: usize, cause: Option<controller_cell::LinkEnd>, speaks: bool) {
        let Some(conn) = self.net.conns.get_mut(&id) else { return };
        if !std::mem::replace(&mut conn.ends[end].open, false) {
            return;
        }
        if speaks {
            self.post(id, end, Packet::Close(cause));
        } else {
            // Of what was said before, nobody knows how far it came.
            let wire = &mut conn.wires[end];
            wire.queue.clear();
            wire.leaves.clear();
            wire.stuck = 0;
        }
        self.forget_if_closed(id);
    }

    fn forget_if_closed(&mut self, id: ConnId) {
        if self.net.conns.get(&id).is_some_and(|conn| conn.ends.iter().all(|end| !end.open)) {
            self.net.conns.remove(&id);
        }
    }

    /// A process has ended: its kernel closes what it had, unless the host is gone.
    pub fn close_all(&mut self, pid: Pid, speaks: bool) {
        for (id, end) in self.net.of(pid) {
            self.close(id, end, None, speaks);
        }
    }

    /// Ends every link between two hosts, for both sides; whether there was one.
    pub fn reset_links(&mut self, from: Place, to: Place) -> bool {
        let between = |conn: &Conn| {
            let (one, other) = (conn.ends[0].place, conn.ends[1].place);
            conn.kind == Kind::Link && ((one, other) == (from, to) || (one, other) == (to, from))
        };
        let links: Vec<ConnId> = self.net.conns.iter().filter(|(_, conn)| between(conn)).map(|(id, _)| *id).collect();
        let any = !links.is_empty();
        for id in links {
            // Of what is under way, any end may be lost.
            for direction in 0..2 {
                let kept = self.random.below(4) as usize;
                if let Some(conn) = self.net.conns.get_mut(&id) {
                    conn.wires[direction].queue.truncate(kept);
                    conn.wires[direction].leaves.truncate(kept);
                }
                self.post(id, direction, Packet::Close(None));
            }
        }
        any
    }

    /// A host loses all connections with another without a word to it; whether there was one. The other end stays half open.
    pub fn forget_connections(&mut self, at: Place, other: Place) -> bool {
        let forgotten = |(id, conn): (&ConnId, &Conn)| {
            let end = (0..2).find(|end| (conn.ends[*end].place, conn.ends[1 - end].place) == (at, other))?;
            conn.ends[end].open.then_some((*id, end))
        };
        let there: Vec<(ConnId, usize)> = self.net.conns.iter().filter_map(forgotten).collect();
        self.disturb([at, other]);
        for (id, end) in &there {
            let Some(conn) = self.net.conns.get(id) else { continue };
            match conn.kind {
                Kind::Stream(number) => self.stream_closed(conn.ends[*end].pid, *id, *end, number, None),
                Kind::Link => self.tell_of_link(*id, *end, In::Lost),
            }
            self.close(*id, *end, None, false);
        }
        !there.is_empty()
    }

    /// The first packet of a direction is there.
    pub fn arrive(&mut self, id: ConnId, direction: usize) {
        let now = self.now();
        let Some(conn) = self.net.conns.get_mut(&id) else { return };
        let (from, to) = (conn.ends[direction].place, conn.ends[1 - direction].place);
        if self.net.cuts.contains_key(&(from, to)) || conn.wires[direction].stuck > 0 {
            conn.wires[direction].stuck += 1;
            return;
        }
        let Some(packet) = conn.wires[direction].queue.pop_front() else { return };
        conn.wires[direction].leaves.pop_front();
        let end = &mut conn.ends[1 - direction];
        end.heard = now;
        if end.open {
            self.take_packet(id, 1 - direction, packet);
        } else if let Packet::Close(_) = packet {
            self.forget_if_closed(id);
        }
    }

    fn take_packet(&mut self, id: ConnId, end: usize, packet: Packet) {
        let Some(conn) = self.net.conns.get(&id) else { return };
        let (kind, pid, other) = (conn.kind, conn.ends[end].pid, conn.ends[1 - end].peer);
        let sender = conn.ends[1 - end].pid;
        let link = LinkId { peer: other, number: id.0 };
        let input = match packet {
            Packet::Up(message) => {
                self.tell_sent(sender, kind);
                self.hear_agent(pid, id, message);
                return;
            }
            Packet::Down(message) => return self.hear_controller(pid, kind, message),
            Packet::Say(envelope) => In::Message { link, envelope, bytes: MESSAGE_BYTES as usize },
            Packet::Bulk(bulk, payload) => In::Bulk { link, bulk, payload },
            Packet::Close(cause) => {
                self.close(id, end, None, true);
                match kind {
                    Kind::Stream(number) => return self.stream_closed(pid, id, end, number, cause),
                    Kind::Link => In::Lost(link),
                }
            }
        };
        self.send_in(0, pid, Input::Member(input));
    }

    /// Whether a link has been silent for too long, for either end. A process that lives says so all the time.
    pub fn look_at_link(&mut self, id: ConnId) {
        let now = self.now();
        let Some(conn) = self.net.conns.get(&id) else { return };
        let speaks = |end: &End| end.open && self.runs(end.pid);
        let says: [bool; 2] = [0, 1].map(|from: usize| {
            speaks(&conn.ends[from]) && self.net.is_whole(conn.ends[from].place, conn.ends[1 - from].place)
        });
        let mut silent = Vec::new();
        let Some(conn) = self.net.conns.get_mut(&id) else { return };
        for (from, says) in says.into_iter().enumerate() {
            let end = &mut conn.ends[1 - from];
            if says {
                end.heard = now;
            } else if end.open && now.since_ms(end.heard) >= SILENCE_MAX_MS {
                silent.push(1 - from);
            }
        }
        for end in silent {
            self.tell_of_link(id, end, In::Lost);
            self.close(id, end, None, true);
        }
        if self.net.conns.contains_key(&id) {
            self.bus.put(now.plus_ms(PING_MS), Event::Look(id));
        }
    }

    /// One attempt of an executor to connect to another, which was last known to be on `away`.
    pub fn dial(&mut self, from: Pid, to: Pid, away: Place, attempt: u32) {
        let Some((me, place)) = self.executor(from).map(|e| (e.peer(), self.processes[&from].place)) else { return };
        let there = self.executor(to).filter(|executor| executor.listens).map(|e| e.peer());
        let up = self.hosts.get(usize::from(away)).is_some_and(|host| host.up);
        let reaches = up && self.net.is_whole(place, away) && self.net.is_whole(away, place);
        match there.filter(|_| reaches && self.runs(to)) {
            Some(peer) => {
                let Some(id) = self.connect(Kind::Link, (from, me), (to, peer)) else { return };
                for end in [1, 0] {
                    self.tell_of_link(id, end, In::Linked);
                }
            }
            None if attempt >= DIAL_ATTEMPTS => {
                if let Some(peer) = self.peers_of(from).get(&to).copied() {
                    self.send_in(0, from, Input::Member(In::Refused(peer)));
                }
            }
            None => {
                let us = if reaches && there.is_none() { REFUSED_US } else { TIMED_OUT_US };
                let event = Event::Dial { from, to, place: away, attempt: attempt + 1 };
                self.bus.put(self.bus.now().plus_us(us), event);
            }
        }
    }
}
