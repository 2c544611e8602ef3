//! Prints the library's warnings on standard error.
//!
//! The library reports what it does as `tracing` events. A program with its own subscriber receives them; any
//! other program would miss every warning. [`to_stderr`] is for those programs.

use std::fmt;
use std::io::{self, Write};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The variable that sets the level: `off`, `error`, `warn` (the default), `info`, `debug` or `trace`.
pub const VARIABLE: &str = "BREVITY_LOG";

/// Prints the library's warnings and errors on standard error, one line each, at the level that `BREVITY_LOG`
/// sets. Does nothing if the process already has a subscriber.
pub fn to_stderr() {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let level = match asked.as_str() {
        "" => Some(LevelFilter::WARN),
        "off" | "error" | "warn" | "info" | "debug" | "trace" => asked.parse().ok(),
        _ => None,
    };
    if level.is_none() {
        // If standard error can't be written to, the work goes on without the message.
        let _ = writeln!(
            io::stderr(),
            "brevity: {VARIABLE}={asked:?} is no level, expected off, error, warn, info, debug or trace: \
             taking warn"
        );
    }
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::WARN))
        .with_writer(io::stderr)
        // Without this, a failed write would be reported on standard error and panic.
        .log_internal_errors(false);
    // Fails if the program has set a subscriber already, which takes precedence.
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
