//! Warnings of the library, on standard error.
//!
//! The library tells what it does as `tracing` events. Programs that collect these have their own subscriber;
//! all others would never hear that something is not as they asked: [`to_stderr`] is for them.

use std::fmt;
use std::io::{self, Write};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The variable that says how much is told: `off`, `error`, `warn` (unless set), `info`, `debug` or `trace`.
pub const VARIABLE: &str = "BREVITY_LOG";

/// Has this process tell warnings and errors of the library on standard error, one line each, or what
/// `BREVITY_LOG` asks for. Does nothing where the process has a subscriber already.
pub fn to_stderr() {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let level = match asked.as_str() {
        "" => Some(LevelFilter::WARN),
        "off" | "error" | "warn" | "info" | "debug" | "trace" => asked.parse().ok(),
        _ => None,
    };
    if level.is_none() {
        // As below, where nobody can be told any more the work goes on.
        let _ = writeln!(
            io::stderr(),
            "brevity: {VARIABLE}={asked:?} is no level, expected off, error, warn, info, debug or trace: \
             taking warn"
        );
    }
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::WARN))
        .with_writer(io::stderr)
        // It would say so on standard error, and panic.
        .log_internal_errors(false);
    // Refused where there is one already: that one was asked for.
    let _ = tracing::subscriber::set_global_default(subscriber.event_format(Line).finish());
}

/// `brevity: warning: what happened field=value`.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        write!(out, "brevity: {level}: ")?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
