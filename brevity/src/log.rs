//! Hands the library's warnings to standard error, or to a function of the program.
//!
//! The library reports what it does as `tracing` events. A program with its own subscriber receives them; any
//! other program would miss every warning. [`to_stderr`] and [`to_function`] are for those programs: both set
//! this module's subscriber for the whole process, unless there is another one, and either may be called
//! again to change where the lines go, and which.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{registry, reload};

pub use tracing::Level;
pub use tracing::level_filters::LevelFilter;

/// The variable that sets the level: `off`, `error`, `warn` (the default), `info`, `debug` or `trace`.
pub const VARIABLE: &str = "BREVITY_LOG";

/// A function that receives lines.
type Function = Arc<dyn Fn(Level, &str) + Send + Sync>;

type SetLevel = Box<dyn Fn(LevelFilter) + Send + Sync>;

/// Where lines go.
enum Sink {
    Nowhere,
    Stderr,
    Function(Function),
}

static SINK: RwLock<Sink> = RwLock::new(Sink::Nowhere);

/// Changes the level of this module's subscriber; `None` if the process has another one.
static LEVEL: OnceLock<Option<SetLevel>> = OnceLock::new();

/// Prints the library's warnings and errors on standard error from now on, one line each, at the level that
/// `BREVITY_LOG` sets. Does nothing if the process already has a subscriber of its own.
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
    set(Sink::Stderr, level.unwrap_or(LevelFilter::WARN));
}

/// Hands events up to `level` to a function from now on, instead of standard error: one line each, without a
/// line break and without the level. Returns false, and does nothing, if the process has a subscriber of its
/// own.
///
/// Several threads may be in the function at once. Another thread may call a function for a short time after
/// another has taken its place. The function must not call this library; lines that it causes are dropped.
///
/// ```
/// use brevity::log::{LevelFilter, to_function, to_nowhere};
///
/// assert!(to_function(LevelFilter::INFO, |level, line| println!("{level} of brevity: {line}")));
/// // Groups are made here.
/// to_nowhere();
/// ```
pub fn to_function(level: LevelFilter, function: impl Fn(Level, &str) + Send + Sync + 'static) -> bool {
    set(Sink::Function(Arc::new(function)), level)
}

/// Ends what [`to_stderr`] or [`to_function`] has begun.
pub fn to_nowhere() {
    // Installs nothing for that.
    if LEVEL.get().is_some() {
        set(Sink::Nowhere, LevelFilter::OFF);
    }
}

/// Changes the sink and the level. Returns whether the subscriber is this module's.
fn set(sink: Sink, level: LevelFilter) -> bool {
    let Some(set_level) = LEVEL.get_or_init(install) else { return false };
    *SINK.write() = sink;
    set_level(level);
    true
}

fn install() -> Option<SetLevel> {
    let (filter, handle) = reload::Layer::new(LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(ToSink)
        // Without this, a failed write would be reported on standard error and panic.
        .log_internal_errors(false)
        .event_format(Line);
    // Fails if the program has set a subscriber already, which takes precedence.
    tracing::subscriber::set_global_default(registry().with(filter).with(lines)).ok()?;
    // Fails only if the subscriber is gone, which is global.
    Some(Box::new(move |level| drop(handle.reload(level))))
}

/// Gives each line to the sink of that moment.
struct ToSink;

/// Takes one line.
struct LineWriter(Level);

impl<'a> MakeWriter<'a> for ToSink {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter(Level::INFO)
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> LineWriter {
        LineWriter(*event.level())
    }
}

impl Write for LineWriter {
    /// The subscriber writes a line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let function = match &*SINK.read() {
            Sink::Nowhere => return Ok(line.len()),
            Sink::Stderr => None,
            Sink::Function(function) => Some(Arc::clone(function)),
        };
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end_matches('\n');
        match function {
            None => {
                let line = format!("brevity: {}: {text}\n", name(self.0));
                io::stderr().write_all(line.as_bytes())?;
            }
            // Nothing is locked: it may take its time.
            Some(function) => call(&function, self.0, &text.replace('\n', " ")),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls the function, unless it has caused the line itself, which would never end.
fn call(function: &Function, level: Level, line: &str) {
    thread_local!(static IS_INSIDE: Cell<bool> = const { Cell::new(false) });
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
    if IS_INSIDE.replace(true) {
        return;
    }
    let _inside = Inside;
    function(level, line);
}

fn name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// `what happened field=value`; on standard error behind `brevity: warning: `.
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
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// One test, because the subscriber is the process's.
    #[test]
    fn lines_go_where_they_are_wanted_last() {
        static LINES: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
        let lines = || std::mem::take(&mut *LINES.lock());
        let note = |mark: &'static str| {
            move |level: Level, line: &str| LINES.lock().push((level, format!("{mark} {line}")))
        };
        let say = || {
            tracing::warn!(rank = 3, "it is late");
            tracing::info!("two\nlines");
        };
        to_nowhere();
        say();
        assert!(to_function(LevelFilter::WARN, note("first")));
        say();
        assert_eq!(lines(), [(Level::WARN, "first it is late rank=3".to_owned())]);
        assert!(to_function(LevelFilter::INFO, note("second")));
        say();
        let expected = [(Level::WARN, "second it is late rank=3"), (Level::INFO, "second two lines")];
        assert_eq!(lines(), expected.map(|(level, line)| (level, line.to_owned())));
        assert!(to_function(LevelFilter::OFF, note("third")));
        say();
        to_stderr();
        say();
        to_nowhere();
        say();
        assert_eq!(lines(), []);
        // A subscriber that is set now comes too late.
        assert!(to_function(LevelFilter::ERROR, |_, _| tracing::error!("again")));
        tracing::error!("a function that logs does not deadlock");
    }
}
