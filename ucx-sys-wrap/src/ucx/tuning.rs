//! The UCX settings that this transport changes, and what the user's settings imply.

use std::ffi::CString;
use std::path::Path;

use brevity_ucx_sys::ucp_config_t;

use super::devices::rdma_devices;
use super::engine::check;
use crate::{Error, Result};
use brevity_ucx_sys::Ucp;

const SCHEME: &str = "RNDV_SCHEME";

const REGISTRATION_CACHE: &str = "RCACHE_ENABLE";

/// The receive slots of UCX's shared memory: each has room for a message of
/// [`MAX_EAGER_BYTES`](super::MAX_EAGER_BYTES), which is then copied in and out as a whole. UCX's default
/// slots are small, and longer messages go through further buffers. More memory than a processor caches would
/// slow the sender: lines in the receiver's cache are slow to write.
const SLOTS: [(&str, &str); 3] = [("FIFO_ELEM_SIZE", "32832"), ("FIFO_SIZE", "128"), ("RX_BUFS_GROW", "256")];

/// The settings by which UCX's slots are found: ranks that share memory must have them alike, which UCX does
/// not check.
const ALIKE: [&str; 2] = ["FIFO_ELEM_SIZE", "FIFO_SIZE"];
const SHARED_BY: [&str; 4] = ["MM", "POSIX", "SYSV", "XPMEM"];

pub(super) const WRITABLE_AFTER_TEARDOWN: &str = "UCX_RNDV_SCHEME is not get_zcopy: after a failure the \
                                                  process may have to end, because peers may still write \
                                                  its memory; unset it";

/// Prefixes of names in `UCX_TLS` without RDMA hardware, apart from shared memory.
const WITHOUT_RDMA: [&str; 8] = ["tcp", "self", "ud", "cuda", "rocm", "gdr", "ze_", "gaudi"];

/// Names in `UCX_TLS` that bring shared-memory lanes.
const SHARED_MEMORY: [&str; 8] = ["all", "sm", "shm", "mm", "posix", "sysv", "cma", "xpmem"];

/// Those that name all of them.
const ALL_SHARED_MEMORY: [&str; 2] = ["sm", "shm"];

/// Kernel modules by which UCX reads registered memory.
const REGISTERING_MODULES: [&str; 2] = ["/dev/knem", "/dev/xpmem"];

/// Whether registering memory costs anything on this host.
pub(super) fn registers_memory() -> bool {
    !rdma_devices().is_empty() || REGISTERING_MODULES.iter().any(|device| Path::new(device).exists())
}

/// The settings, and what follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    /// Settings without `UCX_`, in the order of application.
    settings: Vec<(String, String)>,
    /// Whether nothing writes our memory any more once the worker is destroyed.
    pub(super) teardown_ends_access: bool,
    /// Whether UCX's puts and gets surely reach the memory of ranks of this host directly; otherwise ranks
    /// ask each other.
    pub(super) reaches_here: bool,
    /// Whether they reach other hosts by RDMA hardware.
    pub(super) has_rdma: bool,
    /// Whether only sockets join ranks.
    pub(super) has_sockets_only: bool,
    /// What all ranks must have alike, as users write it.
    pub(super) agreed: String,
}

impl Tuning {
    /// Decides, given the caller's settings (without `UCX_`), the environment, the library's version, whether
    /// registering memory costs anything here, and the RDMA devices.
    ///
    /// With shared-memory lanes rendezvous is by `get_zcopy`: the receiver fetches, so destroying its worker
    /// ends access; under `put_zcopy` the sender would go on writing. Without shared memory only our own
    /// worker writes what its sockets bring, and from 1.19 on `put_zcopy` is much faster on tcp.
    ///
    /// Registrations are cached only where they cost something: for the cache UCX replaces the C library's
    /// `munmap`, `brk` and their like, which other threads may be using, and moves the end of the heap
    /// without its lock.
    pub(super) fn decide(
        given: &[(String, String)],
        environment: impl Fn(&str) -> Option<String>,
        version: (u32, u32, u32),
        registers_memory: bool,
        devices: &[String],
    ) -> Self {
        let chosen = |name: &str| {
            let given = given.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.clone());
            given.or_else(|| environment(&format!("UCX_{name}")))
        };
        let transports = chosen("TLS").unwrap_or_else(|| "all".into());
        let networks = chosen("NET_DEVICES").unwrap_or_else(|| "all".into());
        let has_rdma =
            uses_hardware(&transports) && devices.iter().any(|device| uses_device(&networks, device));
        let (shares_memory, reaches_here) = shares_memory(&transports);
        let mut settings = given.to_vec();
        // Before 1.17 programs set a transport's option without the transport's name.
        if (version.0, version.1) < (1, 17) {
            let ports = settings.iter_mut().filter(|(name, _)| name == "TCP_PORT_RANGE");
            ports.for_each(|(name, _)| *name = "PORT_RANGE".into());
        }
        let mut teardown_ends_access = true;
        match chosen(SCHEME) {
            Some(scheme) => teardown_ends_access = !shares_memory || scheme == "get_zcopy",
            None if shares_memory => settings.push((SCHEME.into(), "get_zcopy".into())),
            None if (version.0, version.1) >= (1, 19) => settings.push((SCHEME.into(), "put_zcopy".into())),
            None => {}
        }
        let has_sockets_only = !shares_memory && !has_rdma;
        for (name, value) in SLOTS {
            let is_chosen = SHARED_BY.iter().any(|by| chosen(&format!("{by}_{name}")).is_some());
            if shares_memory && !is_chosen {
                settings.push((format!("MM_{name}"), value.into()));
            }
        }
        if !registers_memory && chosen(REGISTRATION_CACHE).is_none() {
            settings.push((REGISTRATION_CACHE.into(), "n".into()));
        }
        let made = settings.iter().rev().find(|(name, _)| name == SCHEME).map(|(_, value)| value.clone());
        let scheme = made.or_else(|| chosen(SCHEME)).unwrap_or_else(|| "auto".into());
        let mut agreed = format!("UCX_TLS={transports} UCX_{SCHEME}={scheme}");
        for name in SHARED_BY.iter().flat_map(|by| ALIKE.map(|name| format!("{by}_{name}"))) {
            if let Some(value) = chosen(&name).filter(|_| shares_memory) {
                agreed += &format!(" UCX_{name}={value}");
            }
        }
        Self { settings, teardown_ends_access, reaches_here, has_rdma, has_sockets_only, agreed }
    }

    /// Applies the settings.
    ///
    /// # Safety
    /// `config` comes from `ucp_config_read` of `ucp` and has not been released.
    pub(super) unsafe fn apply(&self, ucp: &Ucp, config: *mut ucp_config_t) -> Result<()> {
        for (name, value) in &self.settings {
            let refused =
                || Error::Unavailable { name: "ucx", why: format!("UCX does not take UCX_{name}={value}") };
            let (Ok(name_c), Ok(value_c)) = (CString::new(name.as_str()), CString::new(value.as_str()))
            else {
                return Err(refused());
            };
            // SAFETY: the configuration lives (the caller), and the strings outlive the call.
            let status = unsafe { ucp.ucp_config_modify(config, name_c.as_ptr(), value_c.as_ptr()) };
            check(ucp, "ucp_config_modify", status).map_err(|_| refused())?;
        }
        Ok(())
    }
}

/// Whether a value of `UCX_TLS` allows shared-memory lanes: perhaps, and surely.
fn shares_memory(transports: &str) -> (bool, bool) {
    match transports.strip_prefix('^') {
        Some(without) => (
            !names(without).any(|name| ALL_SHARED_MEMORY.contains(&name)),
            !names(without).any(brings_shared_memory),
        ),
        None => [names(transports).any(brings_shared_memory); 2].into(),
    }
}

/// Whether a value of `UCX_TLS` surely allows lanes of RDMA hardware.
fn uses_hardware(transports: &str) -> bool {
    let is_other =
        |name: &str| brings_shared_memory(name) || WITHOUT_RDMA.iter().any(|start| name.starts_with(start));
    match transports.strip_prefix('^') {
        Some(without) => names(without).all(is_other),
        None => names(transports).any(|name| name == "all" || !is_other(name)),
    }
}

/// Whether a value of `UCX_NET_DEVICES` surely allows an RDMA device.
fn uses_device(networks: &str, device: &str) -> bool {
    networks == "all" || names(networks).any(|name| name.split(':').next() == Some(device))
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(|name| name.trim().trim_start_matches('\\'))
}

fn brings_shared_memory(name: &str) -> bool {
    name.starts_with("knem") || SHARED_MEMORY.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ucx::MAX_EAGER_BYTES;

    const OLD: (u32, u32, u32) = (1, 13, 1);
    const NEW: (u32, u32, u32) = (1, 19, 0);

    fn scheme(
        given: &[(&str, &str)],
        environment: &[(&str, &str)],
        version: (u32, u32, u32),
    ) -> (Option<String>, bool) {
        let given: Vec<_> = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let look =
            |name: &str| environment.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
        let tuning = Tuning::decide(&given, look, version, false, &[]);
        let scheme = tuning.settings.iter().find(|(name, _)| name == SCHEME).map(|(_, value)| value.clone());
        (scheme, tuning.teardown_ends_access)
    }

    #[test]
    fn the_receiver_fetches_where_memory_is_shared() {
        for transports in ["all", "tcp,sm,self", "posix,cma,self", "^rc", "\\shm"] {
            assert_eq!(
                scheme(&[], &[("UCX_TLS", transports)], NEW),
                (Some("get_zcopy".into()), true),
                "{transports}"
            );
        }
        assert_eq!(scheme(&[], &[], OLD), (Some("get_zcopy".into()), true));
    }

    #[test]
    fn without_shared_memory_the_fast_scheme_is_taken() {
        for transports in ["tcp,self", "^sm", "^cuda,shm"] {
            assert_eq!(scheme(&[("TLS", transports)], &[], OLD), (None, true), "{transports}");
        }
        assert_eq!(
            scheme(&[("TLS", "tcp,self")], &[("UCX_TLS", "all")], NEW),
            (Some("put_zcopy".into()), true)
        );
    }

    #[test]
    fn memory_is_reached_without_messages_where_it_is_shared_or_hardware_does_it() {
        let reach_by = |transports: &str, networks: Option<&str>, has_device| {
            let look = |name: &str| match name {
                "UCX_TLS" => Some(transports.to_string()),
                "UCX_NET_DEVICES" => networks.map(str::to_string),
                _ => None,
            };
            let devices = if has_device { vec!["mlx5_0".to_string()] } else { vec![] };
            let tuning = Tuning::decide(&[], look, NEW, has_device, &devices);
            (tuning.reaches_here, tuning.has_rdma)
        };
        let reach = |transports: &str, has_device| reach_by(transports, None, has_device);
        for (networks, expected) in
            [("all", true), ("eth0,mlx5_0:1", true), ("mlx5_0", true), ("eth0", false)]
        {
            assert_eq!(reach_by("all", Some(networks), true), (true, expected), "{networks}");
        }
        for (transports, has_device, expected) in [
            ("tcp,self", false, (false, false)),
            ("tcp,self", true, (false, false)),
            ("tcp,\\cuda_copy,gdr_copy", true, (false, false)),
            ("all", false, (true, false)),
            ("^rc", false, (true, false)),
            ("^rc", true, (true, false)),
            ("^sm", true, (false, true)),
            ("^posix,cuda", true, (false, true)),
            ("^cuda", true, (true, true)),
            ("tcp,sm,self", true, (true, false)),
            ("rc,ud,tcp", true, (false, true)),
            ("ud_x,self", true, (false, false)),
            ("rc,tcp", false, (false, false)),
            ("all", true, (true, true)),
            ("^shm", true, (false, true)),
        ] {
            assert_eq!(reach(transports, has_device), expected, "{transports}, device: {has_device}");
        }
    }

    #[test]
    fn registrations_are_kept_where_they_cost_something_or_the_user_says_so() {
        let cache = |given: &[(&str, &str)], environment: &'static str, registers| {
            let given: Vec<_> =
                given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let look = |name: &str| (name == environment).then(|| "y".to_string());
            let settings = Tuning::decide(&given, look, NEW, registers, &[]).settings;
            let values =
                settings.into_iter().filter(|(name, _)| name == REGISTRATION_CACHE).map(|(_, value)| value);
            values.collect::<Vec<_>>()
        };
        assert_eq!(cache(&[], "", false), ["n"]);
        assert!(cache(&[], "", true).is_empty() && cache(&[], "UCX_RCACHE_ENABLE", false).is_empty());
        assert_eq!(cache(&[("RCACHE_ENABLE", "try")], "", false), ["try"]);
    }

    #[test]
    fn what_ranks_must_have_alike_is_what_holds() {
        let agreed = |environment: &[(&str, &str)], version| {
            let look = |name: &str| {
                environment.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string())
            };
            Tuning::decide(&[], look, version, true, &[]).agreed
        };
        assert_eq!(agreed(&[], OLD), "UCX_TLS=all UCX_RNDV_SCHEME=get_zcopy");
        assert_eq!(agreed(&[("UCX_TLS", "tcp")], OLD), "UCX_TLS=tcp UCX_RNDV_SCHEME=auto");
        assert_eq!(agreed(&[("UCX_TLS", "tcp")], NEW), "UCX_TLS=tcp UCX_RNDV_SCHEME=put_zcopy");
        let both = [("UCX_TLS", "tcp"), ("UCX_RNDV_SCHEME", "am")];
        assert_eq!(agreed(&both, NEW), "UCX_TLS=tcp UCX_RNDV_SCHEME=am");
    }

    #[test]
    fn slots_have_room_for_what_is_sent_at_once_unless_the_user_says_otherwise() {
        let decide = |environment: &'static [(&str, &str)]| {
            let look = |name: &str| {
                environment.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string())
            };
            let tuning = Tuning::decide(&[], look, NEW, true, &[]);
            let settings = tuning.settings.into_iter().filter(|(name, _)| name.starts_with("MM_"));
            (settings.collect::<Vec<_>>(), tuning.agreed)
        };
        let (all, agreed) = decide(&[]);
        assert_eq!(all, SLOTS.map(|(name, value)| (format!("MM_{name}"), value.to_string())));
        assert_eq!(agreed, "UCX_TLS=all UCX_RNDV_SCHEME=get_zcopy");
        let bytes: usize = all[0].1.parse().unwrap();
        assert!(bytes >= MAX_EAGER_BYTES + 64 && !bytes.is_multiple_of(4096), "{bytes}");
        let tcp = decide(&[("UCX_TLS", "tcp"), ("UCX_MM_FIFO_SIZE", "32")]);
        assert_eq!(tcp, (vec![], "UCX_TLS=tcp UCX_RNDV_SCHEME=put_zcopy".into()));
        let (left, agreed) = decide(&[("UCX_MM_FIFO_SIZE", "32"), ("UCX_POSIX_FIFO_ELEM_SIZE", "256")]);
        assert_eq!(left, [all[2].clone()]);
        assert_eq!(
            agreed,
            "UCX_TLS=all UCX_RNDV_SCHEME=get_zcopy UCX_MM_FIFO_SIZE=32 UCX_POSIX_FIFO_ELEM_SIZE=256"
        );
    }

    #[test]
    fn sockets_alone_join_ranks_without_shared_memory_and_without_a_device() {
        let decide = |transports: &'static str, devices: &[String]| {
            let look = |name: &str| (name == "UCX_TLS").then(|| transports.to_string());
            Tuning::decide(&[], look, NEW, true, devices).has_sockets_only
        };
        assert!(decide("tcp,self", &[]));
        for (transports, devices) in
            [("all", vec![]), ("tcp,shm", vec![]), ("tcp,rc", vec!["mlx5_0".to_string()])]
        {
            assert!(!decide(transports, &devices), "{transports}");
        }
    }

    #[test]
    fn the_users_choice_wins_and_costs_the_promise() {
        assert_eq!(scheme(&[], &[("UCX_RNDV_SCHEME", "put_zcopy")], NEW), (None, false));
        assert_eq!(scheme(&[], &[("UCX_RNDV_SCHEME", "get_zcopy")], NEW), (None, true));
        let both = [("UCX_RNDV_SCHEME", "put_zcopy"), ("UCX_TLS", "tcp,self")];
        assert_eq!(scheme(&[], &both, NEW), (None, true));
    }
}
