//! The user that Flux runs as, where the spec names one.
//!
//! The user's own shell (`commands.*`) still runs as the container's user, so that it can install things: the broker, and with
//! it all jobs, run as this one.

use tributary_api::minicluster::Container;

use super::template::settings;

const USER: &str = include_str!("user.sh");
const NEW: &str = include_str!("user_new.sh");
/// Shell that finds out whether the directory for output is there already.
pub(super) const NEW_OUTPUT: &str = "_new_output=; if [[ ! -d $FLUX_OUTPUT_DIR ]]; then _new_output=1; fi";
/// Shell that gives the user what Flux writes.
pub(super) const OWNS: &str = include_str!("user_owns.sh");

/// Name of the user where only an id is written.
const DEFAULT_NAME: &str = "flux";

/// Id of a user that the image does not have, where only a name is written.
const DEFAULT_ID: i64 = 1000;

/// The user of `fluxUser`, unless the container asks for root.
#[derive(Clone, Copy)]
pub(super) struct User<'a> {
    name: &'a str,
    id: i64,
}

impl<'a> User<'a> {
    /// `None`: Flux runs as whoever the container's process is.
    pub(super) fn of(container: &'a Container) -> Option<Self> {
        let user = &container.flux_user;
        let written = user.name.is_some() || user.uid.is_some();
        (written && !container.commands.run_flux_as_root)
            .then(|| Self { name: user.name.as_deref().unwrap_or(DEFAULT_NAME), id: user.uid.unwrap_or(DEFAULT_ID) })
    }

    /// Shell that makes the user if the image has none of this name; `_as_flux` is then what a command runs behind.
    pub(super) fn make(self) -> String {
        self.settings() + USER + NEW
    }

    /// Shell that sets `_as_flux` for a user who is there, and fails without.
    pub(super) fn find(self) -> String {
        self.settings() + USER + "_find_flux_user 2>/dev/null || exit 1\n"
    }

    fn settings(self) -> String {
        settings([("fluxuser", self.name), ("fluxuid", &self.id.to_string())])
    }
}
