//! Sets up what a process lets others see, and ends it within a bounded time.

use crate::client::Client;
use crate::lines::{Lines, LogFormat};
use crate::settings::{Exports, TelemetryError, exports, service_name};
use crate::{hop, metrics};
use opentelemetry::{Key, KeyValue, global};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::resource::{EnvResourceDetector, ResourceDetector};
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Longest wait for each kind of telemetry at the end: a collector that is away must not hold up a process that is to go.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What a process says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Its role: `ebb`, `ebb-agent`, …, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` say another.
    pub service: &'static str,
    /// What it logs if `EBB_LOG` does not say.
    pub log: &'static str,
    /// How its log lines look.
    pub format: LogFormat,
    /// Whether they may be coloured.
    pub ansi: bool,
}

/// Telemetry of a process, running. To be ended before the runtime is.
#[derive(Debug, Default)]
#[must_use = "what was not sent yet is lost without an end"]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    logs: Option<SdkLoggerProvider>,
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// How the log lines of this process look, for the processes that it starts.
#[must_use]
pub fn log_format() -> LogFormat {
    FORMAT.get().copied().unwrap_or_default()
}

/// Sets up log lines for a process, and with a runtime to export on also metrics and what the `OTEL_*` variables ask for.
pub fn start(options: Options, runtime: Option<&Handle>) -> Result<Telemetry, TelemetryError> {
    let exports = match runtime {
        Some(_) => exports(&|name| std::env::var(name).ok())?,
        None => Exports::default(),
    };
    // A second call (tests) changes nothing.
    let _ = FORMAT.set(options.format);
    let mut telemetry = Telemetry::default();
    if let Some(runtime) = runtime {
        telemetry.export(options.service, exports, runtime)?;
    }
    let filter = || EnvFilter::try_from_env("EBB_LOG").unwrap_or_else(|_| EnvFilter::new(options.log));
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(Lines::new(options.format))
        .event_format(Lines::new(options.format))
        .with_writer(io::stderr)
        .with_ansi(options.ansi)
        // By default a line that cannot be written is complained of with a panic: an executor whose agent is gone, and with it
        // the reader of this pipe, would lose the thread that was about to end it.
        .log_internal_errors(false)
        .with_filter(filter());
    // What the exporters say of themselves is on standard error only: told to the collector it would make more of itself.
    let own = filter_fn(|metadata| {
        !["opentelemetry", "reqwest", "hyper"].iter().any(|own| metadata.target().starts_with(own))
    });
    let exported =
        telemetry.logs.as_ref().map(|logs| OpenTelemetryTracingBridge::new(logs).with_filter(own.and(filter())));
    // A second call in one process (tests) finds the first one's subscriber, which does as well.
    let _ = Registry::default().with(lines).with(exported).try_init();
    Ok(telemetry)
}

impl Telemetry {
    fn export(&mut self, service: &'static str, exports: Exports, runtime: &Handle) -> Result<(), TelemetryError> {
        let attribute = EnvResourceDetector::new().detect().get(&Key::new("service.name"));
        let name =
            service_name(std::env::var("OTEL_SERVICE_NAME").ok(), attribute.map(|name| name.to_string()), service);
        let resource = Resource::builder().with_service_name(name);
        let process = i64::from(std::process::id());
        let about =
            [KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("process.pid", process)];
        let resource = resource.with_attributes(about).build();
        let client = if exports == Exports::default() { None } else { Some(Client::new(runtime.clone())?) };
        let client = |wanted: bool| client.clone().filter(|_| wanted);

        let registry = prometheus::Registry::new();
        let scraped =
            opentelemetry_prometheus::exporter().with_registry(registry.clone()).without_target_info().build()?;
        let mut meters = SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(scraped);
        if let Some(client) = client(exports.metrics) {
            let exporter = MetricExporter::builder().with_http().with_http_client(client).build()?;
            meters = meters.with_periodic_exporter(exporter);
        }
        let meters = meters.build();
        global::set_meter_provider(meters.clone());
        metrics::keep(registry);
        self.metrics = Some(meters);

        if let Some(client) = client(exports.traces) {
            let exporter = SpanExporter::builder().with_http().with_http_client(client).build()?;
            let traces =
                SdkTracerProvider::builder().with_resource(resource.clone()).with_batch_exporter(exporter).build();
            global::set_tracer_provider(traces.clone());
            self.traces = Some(traces);
            hop::turn(true);
        }
        if let Some(client) = client(exports.logs) {
            let exporter = LogExporter::builder().with_http().with_http_client(client).build()?;
            self.logs =
                Some(SdkLoggerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build());
        }
        Ok(())
    }

    /// Sends what is left and ends, in a bounded time. Blocks: not on the runtime's own threads.
    pub fn stop(self) {
        hop::turn(false);
        let ended = [
            self.traces.map(|traces| traces.shutdown_with_timeout(STOP_TIMEOUT)),
            self.metrics.map(|metrics| stop_metrics(metrics, STOP_TIMEOUT)),
        ];
        let tell = |error: &OTelSdkError| {
            tracing::event!(Level::WARN, %error, "the last telemetry of this process was not sent");
        };
        ended.into_iter().flatten().filter_map(Result::err).for_each(|error| tell(&error));
        // After all that is to be told: the provider complains of lines that come when it has ended.
        self.logs.and_then(|logs| logs.shutdown_with_timeout(STOP_TIMEOUT).err()).iter().for_each(tell);
    }
}

/// Ends metrics within this time. The provider takes a time-out and waits five seconds whatever it says, so it ends on a thread of its own, which
/// outlives the call if it has to; it goes with the process.
fn stop_metrics(metrics: SdkMeterProvider, timeout: Duration) -> OTelSdkResult {
    let (ended, end) = mpsc::channel();
    let stop = move || {
        // Whoever waited may have gone.
        let _ = ended.send(metrics.shutdown());
    };
    thread::Builder::new()
        .name("last-metrics".to_owned())
        .spawn(stop)
        .map_err(|error| OTelSdkError::InternalFailure(format!("no thread to send the last metrics: {error}")))?;
    end.recv_timeout(timeout).unwrap_or(Err(OTelSdkError::Timeout(timeout)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::Temporality;
    use opentelemetry_sdk::metrics::data::ResourceMetrics;
    use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
    use std::sync::Mutex;

    /// A collector that does not answer before the test ends.
    struct Hangs(Mutex<mpsc::Receiver<()>>);

    impl PushMetricExporter for Hangs {
        async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
            let _ = self.0.lock().unwrap().recv();
            Ok(())
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }

        fn temporality(&self) -> Temporality {
            Temporality::Cumulative
        }
    }

    /// It took the provider's own five seconds, whatever it was given.
    #[test]
    fn the_last_metrics_hold_nobody_up_for_longer_than_said() {
        let (held, hangs) = mpsc::channel();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(Hangs(Mutex::new(hangs))).build();
        // Of nothing nothing is sent.
        provider.meter("test").u64_counter("count").build().add(1, &[]);
        let timeout = Duration::from_millis(10);
        let ended = stop_metrics(provider, timeout);
        assert!(matches!(ended, Err(OTelSdkError::Timeout(waited)) if waited == timeout), "{ended:?}");
        drop(held);
    }
}
