//! `ebb demand follow`: publishes what a fleet needs from the metrics that Prometheus has of its servers. Asks, looks and publishes
//! within time limits; the formulas, the hysteresis and what silence means are in the crate `gateway-demand`.

use crate::args::ms;
use crate::failure::Failure;
use crate::output::{Output, advise, line};
use crate::roles::signals::Signals;
use crate::sentences::counted;
use clap::{Args, ValueEnum};
use events_schema::{FleetId, TimeMs};
use gateway_api::PublishDemand;
use gateway_client::Client;
use gateway_demand::{
    ALL_SLOTS, FleetView, Follower, Formula, Input, OnSilence, Reading, Settings, Source, Standing, Step, Wish, sample,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use storage::store::without_secrets;

/// Longest wait for Prometheus: a query of ours takes milliseconds.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read; ours have a hundred bytes.
const ANSWER_LEN_MAX: usize = 1 << 20;

/// Examples of `ebb demand follow`.
pub const HELP: &str = "\
Examples:
  ebb demand follow chat --prometheus http://127.0.0.1:9090 --metrics vllm --requests-per-slot 16 --explain
  ebb demand follow chat --prometheus http://127.0.0.1:9090 --metrics vllm --requests-per-slot 16
  ebb demand follow vision --prometheus http://127.0.0.1:9090 --metrics dcgm --selector 'namespace=\"vision\"' --target 0.7

The need rises at once, and falls once nothing higher was read for --fall-after. While nothing is known for longer than --lifetime,
nothing new is lent; after three times that, slots come back one by one (--on-silence). docs/demand.md states the formulas.";

/// Arguments of `ebb demand follow`.
#[derive(Debug, Clone, Args)]
pub struct FollowArgs {
    /// The fleet.
    pub fleet: FleetId,
    /// The Prometheus that has its servers' metrics.
    #[arg(long, value_name = "URL")]
    pub prometheus: String,
    /// Whose metrics they are.
    #[arg(long, value_enum)]
    pub metrics: Metrics,
    /// Which series are this fleet's: label matchers as in PromQL, without braces.
    #[arg(long, value_name = "MATCHERS", default_value = "")]
    pub selector: String,
    /// Requests at once that one slot serves well; of vllm and triton.
    #[arg(long, value_name = "N", required_if_eq_any([("metrics", "vllm"), ("metrics", "triton")]), value_parser = above_zero)]
    pub requests_per_slot: Option<f64>,
    /// Slots of one vLLM engine: its tensor-parallel size.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = above_zero)]
    pub slots_per_engine: f64,
    /// Wanted load of a slot, above 0 and at most 1.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = share)]
    pub target: f64,
    /// Slots beyond what the load needs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub spare: u32,
    /// While 99 of 100 requests take longer, all its slots are needed; of vllm (first token) and triton
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub p99_limit: Option<Duration>,
    /// Over how long the rates of counters are taken: four scrapes or more.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = seconds)]
    pub window: Duration,
    /// How often it is looked.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = seconds)]
    pub every: Duration,
    /// A lower need counts once nothing higher was read for so long.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub fall_after: Duration,
    /// How long a sample is good for: three scrapes or more.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = seconds)]
    pub lifetime: Duration,
    /// What happens when nothing is known for longer.
    #[arg(long, value_enum, default_value = "paced")]
    pub on_silence: Silence,
    /// Between two slots that come back, when they do one by one.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds)]
    pub return_every: Duration,
    /// Look once, show queries, inputs, formula and result, and publish nothing.
    #[arg(long)]
    pub explain: bool,
}

/// Whose metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Metrics {
    /// `vllm:*`
    Vllm,
    /// `nv_inference_*`
    Triton,
    /// `DCGM_FI_DEV_*`
    Dcgm,
}

/// What silence does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Silence {
    /// Lend nothing new at once; after three lifetimes slots come back one by one.
    Paced,
    /// All slots come back at once.
    AtOnce,
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|n: &f64| n.is_finite()).ok_or_else(|| format!("`{text}` is no number"))
}

fn above_zero(text: &str) -> Result<f64, String> {
    number(text).ok().filter(|n| *n > 0.0).ok_or_else(|| "expected a number above 0".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    number(text)
        .ok()
        .filter(|n| *n > 0.0 && *n <= 1.0)
        .ok_or_else(|| "expected a number above 0 and at most 1".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    /// Longer than any traffic is remembered.
    const LONGEST: Duration = Duration::from_secs(7 * 86_400);
    crate::args::duration(text).and_then(
        |time| {
            if time <= LONGEST { Ok(time) } else { Err("expected at most 7d".to_owned()) }
        },
    )
}

fn seconds(text: &str) -> Result<Duration, String> {
    time(text)
        .ok()
        .filter(|time| *time >= Duration::from_secs(1))
        .ok_or_else(|| "expected a time of at least 1s".to_owned())
}

impl FollowArgs {
    fn formula(&self) -> Formula {
        Formula {
            source: match self.metrics {
                Metrics::Vllm => Source::Vllm,
                Metrics::Triton => Source::Triton,
                Metrics::Dcgm => Source::Dcgm,
            },
            selector: self.selector.clone(),
            requests_per_slot: self.requests_per_slot.unwrap_or(1.0),
            slots_per_engine: self.slots_per_engine,
            target: self.target,
            window_s: u32::try_from(self.window.as_secs()).unwrap_or(u32::MAX),
            spare: self.spare,
            p99_limit_ms: self.p99_limit.map(ms),
        }
    }

    fn settings(&self) -> Settings {
        let on_silence = match self.on_silence {
            Silence::Paced => OnSilence::Paced { every_ms: ms(self.return_every) },
            Silence::AtOnce => OnSilence::AtOnce,
        };
        Settings { fall_after_ms: ms(self.fall_after), lifetime_ms: ms(self.lifetime), on_silence }
    }
}

/// Follows until a signal comes, or shows once what it would do.
pub async fn follow(client: &Client, output: Output, args: &FollowArgs) -> Result<(), Failure> {
    let prometheus = Prometheus::new(&args.prometheus)?;
    if args.p99_limit.is_some() && args.metrics == Metrics::Dcgm {
        let what =
            "--p99-limit is of no use with --metrics dcgm, which knows of no requests; say it with vllm or triton";
        return Err(Failure::Usage(what.to_owned()));
    }
    if args.explain {
        return explain(client, &prometheus, output, args).await;
    }
    let mut signals = Signals::listen()?;
    let begun = Instant::now();
    let now = || TimeMs(ms(begun.elapsed()));
    // A fleet that does not exist, or a service that is not there, is a mistake now and a disturbance later.
    fleet(client, &args.fleet).await?;
    let mut following =
        Following { client, prometheus, output, args, formula: args.formula(), said: None, troubled: None };
    let mut follower = Follower::new(now(), args.settings());
    let mut look = tokio::time::interval(args.every);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = signals.next() => return Ok(()),
        }
        tokio::select! {
            () = following.look(&mut follower, &now) => {}
            () = signals.next() => return Ok(()),
        }
    }
}

async fn explain(client: &Client, prometheus: &Prometheus, output: Output, args: &FollowArgs) -> Result<(), Failure> {
    let formula = args.formula();
    let readings = prometheus.readings(&formula).await?;
    if readings.iter().all(Option::is_none) {
        advise(prometheus.no_series(&formula));
    }
    let fleet = fleet(client, &args.fleet).await?;
    let need = formula.need(&readings).map(|need| if need == ALL_SLOTS { fleet.slots } else { need });
    let stale = Formula::age_ms(&readings) > args.settings().lifetime_ms;
    if output == Output::Json {
        let inputs: Vec<Value> = formula
            .inputs()
            .iter()
            .zip(&readings)
            .map(|(input, reading)| json!({"name": input.name, "query": input.query, "value": reading.map(|r| r.value), "age_ms": reading.map(|r| r.age_ms)}))
            .collect();
        let explained = json!({"fleet": args.fleet, "metrics": formula.source.name(), "inputs": inputs, "load": formula.load(&readings), "formula": formula.stated(), "target": formula.target, "spare": formula.spare, "need": need, "too_slow": formula.too_slow_s(&readings).is_some(), "stale": stale, "slots": fleet.slots, "counts": fleet.needed});
        crate::output::json(&explained);
        return Ok(());
    }
    let counts =
        fleet.needed.map_or_else(|| "no need was published yet".to_owned(), |needed| format!("{needed} counts now"));
    let stale = if stale { "\nits samples are older than --lifetime: that is silence" } else { "" };
    line(format!(
        "{}fleet      {} has {}; {counts}{stale}",
        formula.explained(&readings),
        args.fleet,
        counted(&fleet.slots.into(), "slot")
    ));
    Ok(())
}

struct Following<'a> {
    client: &'a Client,
    prometheus: Prometheus,
    output: Output,
    args: &'a FollowArgs,
    formula: Formula,
    /// What was last said, so that it is said once.
    said: Option<Step>,
    /// What was wrong at the last look, if anything was: it is not said again at each look.
    troubled: Option<String>,
}

/// Why a look came to nothing.
enum Trouble {
    Failure(Failure),
    /// None of its queries finds anything.
    NoSeries,
}

impl Following<'_> {
    /// One look. Whatever fails is said, once, and tried again with the next.
    async fn look(&mut self, follower: &mut Follower, now: &impl Fn() -> TimeMs) {
        let (read, unread) = match self.prometheus.readings(&self.formula).await {
            Ok(readings) if readings.iter().all(Option::is_none) => (None, Some(Trouble::NoSeries)),
            Ok(readings) => (self.formula.need(&readings).map(|need| (need, Formula::age_ms(&readings))), None),
            Err(failure) => (None, Some(Trouble::Failure(failure))),
        };
        let answered = self.answer(follower, read, now).await;
        self.say_trouble(answered.err().map(Trouble::Failure).or(unread));
    }

    /// Publishes and says what follows from what was read.
    async fn answer(
        &mut self,
        follower: &mut Follower,
        read: Option<(u32, u64)>,
        now: &impl Fn() -> TimeMs,
    ) -> Result<(), Failure> {
        let fleet = fleet(self.client, &self.args.fleet).await?;
        let step = follower.look(now(), read, fleet);
        if step.publish {
            self.publish(step.wish.needed()).await?;
        }
        self.say(step, now());
        Ok(())
    }

    /// Says what went wrong, if it is something else than at the last look, and that it is over.
    fn say_trouble(&mut self, trouble: Option<Trouble>) {
        let text = match &trouble {
            Some(Trouble::Failure(failure)) => Some(failure.to_string()),
            Some(Trouble::NoSeries) => Some(self.prometheus.no_series(&self.formula)),
            None => None,
        };
        if text != self.troubled {
            match (&trouble, &text) {
                (Some(Trouble::Failure(failure)), _) => failure.print(),
                (_, Some(text)) => advise(text),
                (_, None) => advise("it is read again"),
            }
            self.troubled = text;
        }
    }

    async fn publish(&self, needed: u32) -> Result<(), Failure> {
        self.client.demand(self.args.fleet.as_str(), &PublishDemand::needed(needed)).await?;
        Ok(())
    }

    fn say(&mut self, step: Step, now: TimeMs) {
        let same = |said: Step| said.standing == step.standing && said.wish.needed() == step.wish.needed();
        if self.said.is_some_and(same) {
            return;
        }
        self.said = Some(step);
        let standing = match step.standing {
            Standing::Heard => "heard",
            Standing::Silent => "silent",
            Standing::Returning => "returning",
        };
        if self.output == Output::Json {
            line(json!({"fleet": self.args.fleet, "needed": step.wish.needed(), "standing": standing}).to_string());
            return;
        }
        let why = match (step.standing, step.wish) {
            (Standing::Silent, _) => "nothing is known of its load: nothing new is lent".to_owned(),
            (Standing::Returning, _) => "nothing is known of its load for long: its slots come back".to_owned(),
            (_, Wish::Held { until, .. }) => {
                format!("less is needed now; falls in {} s at the earliest", until.since_ms(now) / 1_000)
            }
            (_, Wish::Read(_)) => "as read".to_owned(),
            (_, Wish::Unknown(_)) => "nothing was read yet; what counts stands".to_owned(),
        };
        line(format!("{} needs {} ({why})", self.args.fleet, counted(&step.wish.needed().into(), "slot")));
    }
}

async fn fleet(client: &Client, name: &FleetId) -> Result<FleetView, Failure> {
    let fleet = client.fleet(name.as_str()).await?;
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let of_state = |state: &str| count(fleet.slots.iter().filter(|slot| slot.state == state).count());
    let (borrowed, own) = (of_state("borrowed"), of_state("unoffered"));
    Ok(FleetView { slots: count(fleet.slots.len()), borrowed, own, needed: fleet.needed })
}

/// Its HTTP API.
struct Prometheus {
    url: url::Url,
    shown: String,
    http: reqwest::Client,
}

impl Prometheus {
    fn new(text: &str) -> Result<Self, Failure> {
        let shown = without_secrets(text);
        let wrong = || {
            Failure::Usage(format!("--prometheus `{shown}` is no address; expected for example http://127.0.0.1:9090"))
        };
        let mut url = url::Url::parse(text).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong());
        }
        let path = format!("{}/api/v1/query", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let http = reqwest::Client::builder()
            .timeout(QUERY_TIMEOUT)
            .no_proxy()
            .build()
            .map_err(|e| Failure::local("the HTTP client cannot be set up", e))?;
        Ok(Self { url, shown, http })
    }

    /// What a formula wants to know, in its order; `None` where there are no samples.
    async fn readings(&self, formula: &Formula) -> Result<Vec<Option<Reading>>, Failure> {
        let inputs = formula.inputs();
        futures::future::try_join_all(inputs.iter().map(|input| self.reading(input))).await
    }

    fn no_series(&self, formula: &Formula) -> String {
        format!("{} has no series for `{}`", self.shown, formula.inputs()[0].query)
    }

    async fn reading(&self, input: &Input) -> Result<Option<Reading>, Failure> {
        let (value, oldest) = tokio::try_join!(self.query(&input.query), self.query(&input.oldest))?;
        Ok(value.zip(oldest).map(|(value, oldest)| Reading::of(value, oldest)))
    }

    async fn query(&self, query: &str) -> Result<Option<gateway_demand::Sample>, Failure> {
        let away = |e: reqwest::Error| {
            Failure::local(format!("Prometheus at {} does not answer", self.shown), e.without_url())
                .advise("look whether it runs and whether --prometheus is its address")
        };
        let mut url = self.url.clone();
        url.query_pairs_mut().append_pair("query", query);
        let mut response = self.http.get(url).send().await.map_err(away)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(away)? {
            if body.len() + piece.len() > ANSWER_LEN_MAX {
                let what = format!("{} answered more than {ANSWER_LEN_MAX} bytes; is it a Prometheus?", self.shown);
                return Err(Failure::plain(what));
            }
            body.extend_from_slice(&piece);
        }
        // It says why it refuses a query; a proxy before it, or itself while it starts, only that it does.
        let refused = format!("Prometheus at {} gave no number for `{query}` (status {status})", self.shown);
        sample(&body).map_err(|e| Failure::local(refused, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_have_bounds() {
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        assert!(time("8d").is_err() && seconds("500ms").is_err() && seconds("x").is_err());
        assert!(share("0").is_err() && share("1.1").is_err() && share("1").is_ok());
        assert!(above_zero("0").is_err() && above_zero("nan").is_err() && above_zero("0.5").is_ok());
    }
}
