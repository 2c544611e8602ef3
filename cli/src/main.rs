//! The `brevity` command.
#![forbid(unsafe_code)]

mod draw;
mod host;
mod info;
mod perf;
mod plan;
mod run;

use std::io::{self, Write};
use std::process::ExitCode;

use brevity_bench::output::UNREAD;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

/// The exit status for invalid arguments.
const BAD_ARGUMENTS: u8 = 2;

/// Collectives that say less: run jobs, measure, see what is there.
#[derive(Parser)]
#[command(name = "brevity", version, arg_required_else_help = false)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Run(run::RunArguments),
    Perf(Box<perf::PerfArguments>),
    Plan(plan::PlanArguments),
    Draw(draw::DrawArguments),
    Info(info::InfoArguments),
    #[command(name = run::TRAMPOLINE, hide = true)]
    Rank(run::TrampolineArguments),
    #[command(name = run::GUARD, hide = true)]
    Guard,
}

fn main() -> ExitCode {
    brevity::log::to_stderr();
    let action = match Command::try_parse() {
        Ok(command) => command.action,
        Err(error) => return explain(&error),
    };
    match action {
        Action::Run(arguments) => end(run::run(arguments), run::Error::status),
        Action::Rank(arguments) => run::trampoline(arguments).into(),
        Action::Guard => {
            brevity::launch::guard();
            ExitCode::SUCCESS
        }
        Action::Perf(arguments) => end(perf::perf(*arguments), perf::Error::status),
        Action::Plan(arguments) => end(plan::plan(&arguments).map(|()| 0), brevity_bench::Error::status),
        Action::Draw(arguments) => end(draw::draw(&arguments).map(|()| 0), brevity_bench::Error::status),
        Action::Info(arguments) => end(info::info(&arguments).map(|()| 0), brevity_bench::Error::status),
    }
}

/// The exit status of a command. Prints its error first.
fn end<E: std::fmt::Display>(outcome: Result<u8, E>, status: impl Fn(&E) -> u8) -> ExitCode {
    match outcome {
        Ok(status) => status.into(),
        Err(error) => {
            // A closed pipe, as by `head`, is not worth a message.
            if status(&error) != UNREAD {
                tell(&error);
            }
            status(&error).into()
        }
    }
}

/// Prints one line on standard error in one write, so that lines of several processes do not mix.
fn tell(what: &dyn std::fmt::Display) {
    let line = format!("brevity: {what}\n");
    // If even this fails, there is no way left to report it.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints the requested help, or one line about the wrong arguments.
fn explain(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        tell(&format_args!("{} (see --help)", complaint(error)));
        return BAD_ARGUMENTS.into();
    }
    // If even this fails, there is no way left to report it.
    let _ = error.print();
    ExitCode::SUCCESS
}

/// What is wrong with the arguments, with the remedy unless it is obvious.
fn complaint(error: &clap::Error) -> String {
    let line = one_line(&error.to_string());
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingSubcommand, _) => {
            let command = Command::command();
            let actions = command.get_subcommands().filter(|action| !action.is_hide_set());
            let names: Vec<&str> = actions.map(clap::Command::get_name).collect();
            format!("expected a command: {}", names.join(", "))
        }
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word)))
            if !word.starts_with('-') && error.to_string().contains("Usage: brevity run") =>
        {
            format!("{line}: put -- before the program, as in `brevity run -n 2 -- {word}`")
        }
        _ => line,
    }
}

/// The first paragraph, which says what is wrong; the rest is advice.
fn one_line(message: &str) -> String {
    let paragraph = message.lines().take_while(|line| !line.trim().is_empty());
    let line = paragraph.map(str::trim).collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn messages_of_the_parser_become_one_line() {
        let complaint = |line: &str| {
            let Err(error) = Command::try_parse_from(line.split(' ')) else { panic!("{line} is accepted") };
            super::complaint(&error)
        };
        assert_eq!(complaint("brevity perf"), "the following required arguments were not provided: <NAME>");
        assert_eq!(complaint("brevity perf latency --bogus"), "unexpected argument '--bogus' found");
        assert!(complaint("brevity perf latency --size 8:4").ends_with("MIN is larger than MAX"));
        assert_eq!(complaint("brevity"), "expected a command: run, perf, plan, draw, info");
        let remedy =
            "unexpected argument 'true' found: put -- before the program, as in `brevity run -n 2 -- true`";
        assert_eq!(complaint("brevity run -n 2 true"), remedy);
        assert_eq!(complaint("brevity run --bogus"), "unexpected argument '--bogus' found");
        assert!(complaint("brevity sing").contains("'sing'"));
    }
}
