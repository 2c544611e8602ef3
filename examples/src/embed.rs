//! What the programs `embed_*` have in common: they start their ranks, and time calls. And the work of a rank
//! on tokio, which two of them do.

use std::error::Error;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use brevity::launch::Launch;
use brevity::transport::bootstrap::Launcher;
use brevity::{Join, ReduceOp};

/// What the work of a rank ends with.
pub type Ended = Result<(), Box<dyn Error + Send + Sync>>;

/// Calls that are timed.
pub const CALLS: u32 = 1000;

/// Runs `rank` as a rank of a launcher's job. Started by hand, starts this program as many times as its first
/// argument says (2 without one).
pub fn main(rank: impl FnOnce() -> Ended) -> ExitCode {
    let ended = if Launcher::from_env().is_some() { rank().map(|()| 0) } else { start() };
    ended.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}

fn start() -> Result<u8, Box<dyn Error + Send + Sync>> {
    let ranks = number(1, "RANKS")?.unwrap_or(2);
    // Every rank would refuse the same.
    number::<f64>(2, "SECONDS")?;
    let outcome = Launch::new(std::env::current_exe()?, std::env::args_os().skip(1)).ranks(ranks).spawn()?;
    let outcome = outcome.wait()?;
    Ok(outcome.first_failure.map_or(0, |_| 1))
}

/// The work of a rank in a runtime of tokio, of one thread or of several.
///
/// # Errors
/// When joining or a call fails.
///
/// # Panics
/// If a sum is wrong.
pub async fn on_tokio() -> Ended {
    let group = Join::from_env()?.join_async().await?;
    tokio::spawn(brevity::tokio::drive(&group)?);
    let begun = Instant::now();
    for _ in 0..CALLS {
        group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum).await.1?;
    }
    report(group.rank(), "awaited one after the other", begun, CALLS);

    // All at once. The ranks start them in the same order; they end in any.
    let begun = Instant::now();
    let calls: Vec<_> =
        (0..100).map(|_| tokio::spawn(group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum))).collect();
    for call in calls {
        call.await?.1?;
    }
    report(group.rank(), "100 tasks at once", begun, 100);

    // Other tasks run while one waits for a late rank.
    report_processor_time(group.rank());
    if group.rank() == 1 {
        tokio::time::sleep(lateness()).await;
    }
    let mut sum = group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum).await;
    sum.1?;
    report_processor_time(group.rank());
    assert_eq!(sum.0.pop(), Some(group.world_size() as f32));
    // The last group of the job: other tasks run until what was sent is on its way.
    group.leave().await?;
    Ok(())
}

/// A number among the arguments.
fn number<T: FromStr>(place: usize, name: &str) -> Result<Option<T>, String> {
    let parse =
        |text: String| text.parse().map_err(|_| format!("{name} is {text:?}: expected a number, as 2"));
    std::env::args().nth(place).map(parse).transpose()
}

/// Prints what a call took.
pub fn report(rank: u32, what: &str, begun: Instant, calls: u32) {
    if rank == 0 {
        println!("{what}: {:.2} us a call", (begun.elapsed() / calls).as_secs_f64() * 1e6);
    }
}

/// How long rank 1 is late for the last call, if the second argument is a number of seconds.
#[must_use]
pub fn lateness() -> Duration {
    let seconds: Option<f64> = number(2, "SECONDS").ok().flatten();
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// Prints the processor time that this process has used.
pub fn report_processor_time(rank: u32) {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    if rank == 0 {
        println!("processor time so far: {} ms", used.tv_sec * 1000 + used.tv_nsec / 1_000_000);
    }
}
