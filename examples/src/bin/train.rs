//! Trains a classifier of handwritten digits on several ranks, once per method of averaging
//! gradients, and prints what each method cost and achieved. See `train --help`.
#![forbid(unsafe_code)]

use brevity_examples::arguments::Arguments;
use brevity_examples::{Error, job, plot, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn run() -> Result<(), Error> {
    let arguments = Arguments::from_words(std::env::args_os())?;
    let dataset = arguments.dataset()?;
    let settings = arguments.settings(&dataset)?;
    let runs = job::train_in_threads(&arguments, &dataset, &settings)?;
    let parameters = settings.model(&dataset)?.parameters();
    let parameter_count = parameters.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    print!("{}", report::table(&runs, parameter_count));
    if let Some(file) = &arguments.json {
        report::write_json(&runs, file)?;
    }
    if let Some(file) = &arguments.plot {
        plot::draw(&runs, file)?;
    }
    Ok(())
}
