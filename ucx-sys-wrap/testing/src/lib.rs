//! What the tests of several crates share: [the wires under test](Wire) and how worlds of ranks are made on
//! them, programs that are [run](run_within) and [Slurm](slurm), what the system says about processes, and
//! [an executor's way of polling](only_when_woken).
#![forbid(unsafe_code)]

mod command;
mod process;
pub mod slurm;
mod wire;
mod woken;
pub mod worlds;

pub use command::{Ended, run_within};
pub use process::{Process, listening_ports};
pub use wire::{Wire, ucx_is_here};
pub use woken::only_when_woken;

/// Whether a variable such as `BREVITY_REQUIRE_UCX` says that what a test needs must be here: missing, it is
/// a failure then, and nothing that is skipped.
#[must_use]
pub fn is_required(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// Makes a module of tests of each body, one for each [`Wire`]: of `NAME => BODY;`, the body taking the wire.
///
/// A wire that is not listed here does not compile.
#[macro_export]
macro_rules! on_every_wire {
    ($($name:ident => $body:expr;)*) => {$(
        $crate::on_wires! {
            $name => $body;
            over_threads: Local,
            over_tcp: Tcp,
            over_encrypted_tcp: TcpEncrypted,
            over_tcp_and_shared_memory: TcpShared,
            over_rings_of_shared_memory: TcpRings,
            over_ucx_and_shared_memory: UcxShared,
            over_ucx_and_tcp: UcxTcp,
            over_ucx_and_the_memory_of_local_peers: UcxLocalPeers,
            over_ucx_as_it_comes: Ucx,
            ; except
        }
    )*};
}

/// The same, for each wire that processes can take: but for [`Wire::Local`], which is of one process, and
/// [`Wire::TcpRings`], which is what the system makes of [`Wire::TcpShared`] where it forbids reading others.
#[macro_export]
macro_rules! on_every_wire_of_processes {
    ($($name:ident => $body:expr;)*) => {$(
        $crate::on_wires! {
            $name => $body;
            over_tcp: Tcp,
            over_encrypted_tcp: TcpEncrypted,
            over_tcp_and_shared_memory: TcpShared,
            over_ucx_and_shared_memory: UcxShared,
            over_ucx_and_tcp: UcxTcp,
            over_ucx_and_the_memory_of_local_peers: UcxLocalPeers,
            over_ucx_as_it_comes: Ucx,
            ; except Local, TcpRings,
        }
    )*};
}

/// A module of tests of one body, and those wires that it is not for.
#[doc(hidden)]
#[macro_export]
macro_rules! on_wires {
    ($name:ident => $body:expr; $($test:ident: $wire:ident,)* ; except $($except:ident,)*) => {
        mod $name {
            use super::*;

            $(
                #[test]
                fn $test() {
                    on_wire($crate::Wire::$wire);
                }
            )*

            fn on_wire(wire: $crate::Wire) {
                let all = |wire| match wire {
                    $($crate::Wire::$wire => true,)*
                    $($crate::Wire::$except => false,)*
                };
                if all(wire) && wire.is_here() {
                    ($body)(wire);
                }
            }
        }
    };
}
