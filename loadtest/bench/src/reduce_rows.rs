//! The canonical sum of 100 MB, and of 1 GB, between real processes, against as many copies of as much at once: what their memory gives.
//!
//! Each member is this program again (`ebb bench-member`), so that links, buffers and scheduling are those of executors.

use crate::Effort;
use crate::goal;
use crate::row::{Row, Times};
use events_schema::JobId;
use loadtest_harness::HarnessError;
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use workers_executor::buffers::Pool;
use workers_executor::collective::{Group, GroupError, Memory};

/// Names of the rows.
pub const NAMES: [&str; 4] = [
    "reduce 100 MB, 2 processes",
    "reduce 100 MB, 4 processes",
    "reduce 100 MB, 2 processes over TCP",
    "reduce 100 MB, 4 processes over TCP",
];
/// Names of the rows of 1 GB.
pub const LARGE_NAMES: [&str; 2] = ["reduce 1 GB, 2 processes", "reduce 1 GB, 2 processes over TCP"];
/// 100 MB of 32-bit floats.
const ELEMENTS: usize = 25_000_000;
/// 1 GB of them.
const LARGE_ELEMENTS: usize = 10 * ELEMENTS;
/// Both ends of a bench know it; the links are between processes of one bench on one machine.
const KEY: [u8; 32] = *b"ebb bench: not a secret at all..";

/// Through memory that members of one host share, and by copies as between hosts.
pub async fn rows(effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let rounds = effort.pick(6, 12);
    let [two, four, two_copied, four_copied] = NAMES;
    let named = [
        (2u16, Memory::Lent, two),
        (4, Memory::Lent, four),
        (2, Memory::Copied, two_copied),
        (4, Memory::Copied, four_copied),
    ];
    of_size(ELEMENTS, rounds, &named).await
}

/// The same of 1 GB, between two: 7 GB of memory.
pub async fn large(effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let named = [(2u16, Memory::Lent, LARGE_NAMES[0]), (2, Memory::Copied, LARGE_NAMES[1])];
    of_size(LARGE_ELEMENTS, effort.pick(6, 12), &named).await
}

async fn of_size(
    elements: usize,
    rounds: usize,
    named: &[(u16, Memory, &'static str)],
) -> Result<Vec<Row>, HarnessError> {
    let mut rows = Vec::new();
    for &(members, memory, name) in named {
        let to_be = if memory == Memory::Lent { goal::SUM_LENT } else { goal::SUM_COPIED };
        // Before and after, so that a slower spell of the machine meets both.
        let before = copies_at_once(elements, rounds, members);
        let times = between_processes(members, memory, elements, rounds).await?;
        let copies = before.and(&copies_at_once(elements, rounds, members));
        rows.push(Row {
            name,
            value: times.median(),
            unit: "ms",
            baseline_name: "ms as many memory copies at once",
            baseline: copies.median(),
            goal: Some(to_be.of_middle(&times, &copies)),
            note: times.spread(),
        });
    }
    Ok(rows)
}

/// How long each of so many copies takes that are begun together.
pub fn copies_at_once(elements: usize, rounds: usize, copies: u16) -> Times {
    let together = Barrier::new(usize::from(copies));
    let copy_all = || {
        let (from, mut to) = (vec![1.0f32; elements], vec![0.0f32; elements]);
        let mut copy = || {
            together.wait();
            let begun = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&to);
            begun.elapsed().as_secs_f64() * 1e3
        };
        // The first one pays for the pages.
        copy();
        (0..rounds).map(|_| copy()).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..copies).map(|_| scope.spawn(copy_all)).collect();
        longest_of_rounds(running.into_iter().filter_map(|copies| copies.join().ok()).collect())
    })
}

/// A member's process and what it says.
type Process = (Child, tokio::io::Lines<BufReader<ChildStdout>>);

async fn between_processes(
    members: u16,
    memory: Memory,
    elements: usize,
    rounds: usize,
) -> Result<Times, HarnessError> {
    let mut running = Vec::new();
    for member in 0..members {
        running.push(start(member, members, memory, elements, rounds)?);
    }
    let mut addresses = Vec::new();
    for member in &mut running {
        addresses.push(said(member).await?["address"].clone());
    }
    let told = format!("{}\n", Value::Array(addresses));
    for (child, _) in &mut running {
        let Some(stdin) = &mut child.stdin else {
            return Err(HarnessError::plain("a member of the bench has no standard input"));
        };
        stdin
            .write_all(told.as_bytes())
            .await
            .map_err(|e| HarnessError::local("a member of the bench does not listen", e))?;
    }
    let mut times_ms = Vec::new();
    for member in &mut running {
        let said = said(member).await?;
        times_ms.push(said["round_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect());
    }
    for (child, _) in &mut running {
        // All have what they need: the end of its input lets a member go.
        child.wait().await.map_err(|e| HarnessError::local("a member of the bench was not seen to end", e))?;
    }
    Ok(longest_of_rounds(times_ms))
}

/// Of each round the longest: what several do at once is one figure.
fn longest_of_rounds(each_ms: Vec<Vec<f64>>) -> Times {
    let rounds = each_ms.iter().map(Vec::len).min().unwrap_or(0);
    let longest = |round: usize| each_ms.iter().map(|times_ms| times_ms[round]).fold(0.0, f64::max);
    Times::of_ms((0..rounds).map(longest).collect())
}

fn start(member: u16, members: u16, memory: Memory, elements: usize, rounds: usize) -> Result<Process, HarnessError> {
    let program = std::env::current_exe().map_err(|e| HarnessError::local("this program's own path is unknown", e))?;
    let mut command = Command::new(program);
    command.args([
        "bench-member",
        "--member",
        &member.to_string(),
        "--members",
        &members.to_string(),
        "--rounds",
        &rounds.to_string(),
        "--elements",
        &elements.to_string(),
    ]);
    if memory == Memory::Copied {
        command.arg("--copy");
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| HarnessError::local("a member of the bench cannot be started", e))?;
    let out = child.stdout.take().ok_or_else(|| HarnessError::plain("a member of the bench has no standard output"))?;
    Ok((child, BufReader::new(out).lines()))
}

async fn said((_, lines): &mut Process) -> Result<Value, HarnessError> {
    let next = lines.next_line().await.map_err(|e| HarnessError::local("a member of the bench cannot be read", e))?;
    let text = next.ok_or_else(|| HarnessError::plain("a member of the bench ended too early"))?;
    serde_json::from_str(&text).map_err(|e| HarnessError::local("a member of the bench is not understood", e))
}

/// One member of the sum.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Which one, from 0.
    pub member: u16,
    /// How many there are.
    pub members: u16,
    /// Sums to make after a first one.
    pub rounds: u64,
    /// Elements of each.
    pub elements: usize,
    /// Whether members read each other's sums where they lie.
    pub memory: Memory,
}

/// What `ebb bench-member` does: says where it listens, is told where the others do, sums, says how long each round took, and
/// waits for the end of its input.
pub fn member(options: Member) -> Result<(), HarnessError> {
    let failed = |e: GroupError| HarnessError::local("the sum over members failed", e);
    let name = JobId::parse("job-bench").map_err(|e| HarnessError::local("the bench has no name", e))?;
    let Member { member, members, memory, .. } = options;
    let listening = Group::listen(&name, KEY, u32::from(member), &vec![0; usize::from(members)], members, memory);
    let mut group = listening.map_err(|e| HarnessError::local("a member of the bench cannot listen", e))?;
    say(&json!({"address": group.address()}))?;
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).map_err(|e| HarnessError::local("standard input cannot be read", e))?;
    let addresses: Vec<String> =
        serde_json::from_str(&told).map_err(|e| HarnessError::local("standard input is not understood", e))?;
    group.link(&addresses).map_err(failed)?;
    let mut gradient = Pool::mapped(options.elements).take();
    gradient.fill(f32::from(member) + 0.5);
    let gradient = Arc::new(gradient);
    let sums: Vec<_> = group.nodes().iter().map(|_| Arc::clone(&gradient)).collect();
    let mut round_ms = Vec::new();
    for round in 0..=options.rounds {
        let begun = Instant::now();
        let sum = group.reduce(round, sums.clone()).map_err(failed)?;
        // The first round pays for pages and connections.
        if round > 0 {
            round_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        drop(std::hint::black_box(sum));
    }
    say(&json!({ "round_ms": round_ms }))?;
    // The others may still need our links.
    std::io::stdin().read_line(&mut told).map_err(|e| HarnessError::local("standard input cannot be read", e))?;
    group.flush();
    Ok(())
}

/// A line to whoever started this member.
fn say(what: &Value) -> Result<(), HarnessError> {
    writeln!(std::io::stdout(), "{what}")
        .map_err(|e| HarnessError::local("the bench does not hear its member any more", e))
}
