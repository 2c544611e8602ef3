//! Trains a classifier of handwritten digits on several ranks, once for each method of averaging gradients,
//! and prints the cost and the result of each method. See `train --help`.
//!
//! Started by hand, it checks its arguments and data, then starts itself once for each rank. Started by a
//! launcher, it is a rank.
#![forbid(unsafe_code)]

use brevity_bench::output::{Outputs, UNREAD, is_standard_output, print};
use brevity_examples::arguments::Arguments;
use brevity_examples::asynchronous::{self, Job};
use brevity_examples::trainer::Run;
use brevity_examples::{Error, job, plot, ranks, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    brevity::log::to_stderr();
    let ending = if ranks::is_launched() { work().map(|()| 0) } else { start() };
    match ending {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            if error.exit_status() != UNREAD {
                eprintln!("train: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}

/// Checks everything that can be wrong, then starts the ranks. Returns the exit status.
fn start() -> Result<u8, Error> {
    let arguments = Arguments::from_words(std::env::args_os())?;
    arguments.settings(&arguments.dataset()?)?;
    // The rank that reports opens them again later; this reports errors before any rank starts.
    arguments.open_outputs()?;
    arguments.open_trace()?;
    // Simulated ranks are tasks of one process.
    let processes = if arguments.asynchronous.simulate.is_some() { 1 } else { arguments.ranks };
    ranks::start((processes, arguments.ranks), arguments.grace())
}

/// Trains as a rank of the launcher's job; rank 0 prints the results.
fn work() -> Result<(), Error> {
    let group = ranks::join()?;
    let told = train(&group).inspect_err(|_| group.abort());
    match told {
        Err(error) if ranks::is_told_elsewhere(&error, group.rank()) => {
            std::process::exit(i32::from(error.exit_status()))
        }
        other => other,
    }
}

fn train(group: &brevity::Group) -> Result<(), Error> {
    let mut arguments = Arguments::from_words(std::env::args_os())?;
    if arguments.asynchronous.simulate.is_none() {
        // The launcher knows how many ranks it has started.
        arguments.ranks = group.world_size() as usize;
    }
    let dataset = arguments.dataset()?;
    let settings = arguments.settings(&dataset)?;
    let job = Job::new(&arguments, &dataset, &settings);
    let is_simulated = arguments.asynchronous.simulate.is_some();
    let is_reporter = is_simulated || group.rank() == job.reporter();
    let outputs = if is_reporter { Some(arguments.open_outputs()?) } else { None };
    let trace = if is_reporter { arguments.open_trace()? } else { None };
    let (runs, traced) = match arguments.asynchronous.simulate {
        Some(speed) => (asynchronous::simulate(&job, speed)?, None),
        None if arguments.asynchronous.is_given() => (asynchronous::train_all(group, &job)?, None),
        None => job::train_all(group, &arguments, &dataset, &settings)?,
    };
    if let (Some(trace), Some(traced)) = (trace, traced) {
        trace.write(&traced)?;
    }
    let Some(outputs) = outputs else { return Ok(()) };
    let parameters = settings.model(&dataset)?.parameters();
    let parameter_count = parameters.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    // If one file can't be written, the other still gets the results of the training.
    let written = write(outputs, &runs);
    if !arguments.json.as_deref().is_some_and(is_standard_output) {
        print(&report::table(&runs, parameter_count))?;
    }
    written
}

fn write(outputs: Outputs, runs: &[Run]) -> Result<(), Error> {
    if let Some(plot) = outputs.plot {
        plot.write(&plot::svg(runs)?)?;
    }
    if let Some(json) = outputs.json {
        json.write(&report::to_json(runs)?)?;
    }
    Ok(())
}
