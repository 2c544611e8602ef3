//! The names of settings in messages: variables of the environment, methods of [`Join`](super::Join), or
//! names that the caller gives.

use std::io;
use std::sync::Arc;

use ucx_sys_wrap::Error;

const PREFIX: &str = "BREVITY_";

/// Variables and what the caller calls them.
pub(super) type Names = [(&'static str, &'static str)];

/// Variables and their methods.
pub(super) const METHODS: &Names = &[
    ("BREVITY_ANNOUNCE", "announce"),
    ("BREVITY_ENCRYPT", "encrypt"),
    ("BREVITY_HOST_ID", "host_id"),
    ("BREVITY_INTERFACE", "interface"),
    ("BREVITY_JOB", "job"),
    ("BREVITY_JOIN_TIMEOUT", "timeout"),
    ("BREVITY_KEY", "key"),
    ("BREVITY_KEY_FILE", "key_file"),
    ("BREVITY_MACHINE", "settings.machine"),
    ("BREVITY_MASTER", "address"),
    ("BREVITY_MASTER_RESERVED", "port_reserved"),
    ("BREVITY_PORT_RANGE", "port_range"),
    ("BREVITY_RANK", "rank"),
    ("BREVITY_SEGMENT", "settings.segment_bytes"),
    ("BREVITY_SHARED_MEMORY", "shared_memory"),
    ("BREVITY_TIMEOUT", "settings.timeout"),
    ("BREVITY_TRANSPORT", "transport"),
    ("BREVITY_WORLD_SIZE", "world_size"),
];

/// The error, with names in place of those variables that have one.
pub(super) fn in_words_of_the_caller(error: Error, names: &Names) -> Error {
    let renamed = |text: &str| renamed(text, names);
    match error {
        Error::Environment { variable, found, expected } if is_named(variable, names) => {
            let name = name_of(variable, names);
            Error::Setting { name, found: renamed(&found), expected: renamed(expected) }
        }
        Error::Disagreement { what, rank, found, expected } => {
            Error::Disagreement { what: name_of(what, names), rank, found, expected: renamed(&expected) }
        }
        Error::Unavailable { name, why } => Error::Unavailable { name, why: renamed(&why) },
        Error::MissingRanks { missing, deadline, master } => {
            Error::MissingRanks { missing, deadline, master: renamed(&master) }
        }
        Error::System { action, source } => {
            let text = source.to_string();
            let source = match text.contains(PREFIX) {
                true => Arc::new(io::Error::new(source.kind(), renamed(&text))),
                false => source,
            };
            Error::System { action: renamed(&action), source }
        }
        other => other,
    }
}

/// Whether it is called otherwise than a variable: the place to meet may be none.
fn is_named(variable: &'static str, names: &Names) -> bool {
    !names.is_empty() && (name_of(variable, names) != variable || !variable.starts_with(PREFIX))
}

/// The name of a variable; anything else is its own name.
pub(super) fn name_of(variable: &'static str, names: &Names) -> &'static str {
    names.iter().find(|(known, _)| *known == variable).map_or(variable, |(_, name)| name)
}

/// The text with names in place of variables; "VARIABLE=value" becomes "name value".
fn renamed(text: &str, names: &Names) -> String {
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(PREFIX) {
        let (before, found) = rest.split_at(start);
        let end = found.find(|sign: char| !(sign.is_ascii_uppercase() || sign == '_')).unwrap_or(found.len());
        let (variable, after) = found.split_at(end);
        let name = names.iter().find(|(known, _)| *known == variable).map(|(_, name)| *name);
        renamed.push_str(before);
        renamed.push_str(name.unwrap_or(variable));
        rest = match after.strip_prefix('=').filter(|_| name.is_some()) {
            Some(value) => {
                renamed.push(' ');
                value
            }
            None => after,
        };
    }
    renamed + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucx_sys_wrap::bootstrap;

    #[test]
    fn variables_become_methods() {
        for (text, expected) in [
            ("nothing of that kind", "nothing of that kind"),
            ("BREVITY_KEY", "key"),
            ("set BREVITY_MASTER=host:port for all", "set address host:port for all"),
            ("(BREVITY_KEY or BREVITY_KEY_FILE)", "(key or key_file)"),
            ("set BREVITY_MASTER_RESERVED=1", "set port_reserved 1"),
            ("BREVITY_UCX_LIB=/opt/ucx", "BREVITY_UCX_LIB=/opt/ucx"),
        ] {
            assert_eq!(renamed(text, METHODS), expected);
        }
    }

    #[test]
    fn variables_without_a_name_stay_variables() {
        let wrong =
            |variable| Error::Environment { variable, found: "\"x\"".into(), expected: "BREVITY_JOB=y" };
        let names = &[("BREVITY_JOB", "config.job")];
        let text = |variable| in_words_of_the_caller(wrong(variable), names).to_string();
        assert_eq!(text("BREVITY_JOB"), "config.job is \"x\": expected config.job y");
        assert_eq!(text("BREVITY_RANK"), "BREVITY_RANK is \"x\": expected BREVITY_JOB=y");
    }

    /// What has no method is of launchers, of the process, of the group's settings, or set by tests.
    #[test]
    fn every_variable_has_a_method() {
        let others = [
            "BREVITY_ALGORITHM",
            "BREVITY_ANY_ORDER",
            "BREVITY_INCARNATION",
            "BREVITY_LAUNCHER",
            "BREVITY_LOG",
            "BREVITY_PMIX_LIB",
            "BREVITY_PROGRESS_THREAD",
            "BREVITY_UCX_LIB",
        ];
        for variable in bootstrap::NAMES.into_iter().filter(|name| !others.contains(name)) {
            assert_ne!(name_of(variable, METHODS), variable);
        }
    }
}
