//! The Flux RESTful API on the lead broker, for instances without a command.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{absent_if_zero, is_default};

/// Branch of the server where none is written.
pub(crate) const DEFAULT_RESTFUL_BRANCH: &str = "main";
/// Port of the server where none is written.
pub(crate) const DEFAULT_RESTFUL_PORT: i32 = 5000;
/// Name of the server's user where none is written.
pub const DEFAULT_RESTFUL_USER: &str = "flux";

/// The Flux RESTful API (<https://github.com/flux-framework/flux-restful-api>): a server on the lead broker that takes
/// jobs, for an instance without a command that is not interactive.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxRestful {
    /// Branch of the server. The default, `main`, is also what an image of the server has in its working directory; of
    /// another one the server is fetched when the instance starts.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_RESTFUL_BRANCH))]
    pub branch: Option<String>,

    /// Port the server listens on, and of the Service `NAME-restful` in front.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_RESTFUL_PORT))]
    pub port: Option<i32>,

    /// Name of an existing Secret with the keys `username`, `token` and `secret-key`, and `users` if there are more: a
    /// name and a password on each line. Without it the agent makes the Secret `NAME-restful`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub secret_name: Option<String>,

    /// Key that server and client share; generated, if not written. Whoever may read the MiniCluster can read it here.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub secret_key: Option<String>,

    /// Name of the user of the server; `flux` if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub username: Option<String>,

    /// The user's token; generated, if not written. Whoever may read the MiniCluster can read it here.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub token: Option<String>,
}

impl FluxRestful {
    /// The branch of the server.
    pub fn branch(&self) -> &str {
        self.branch.as_deref().unwrap_or(DEFAULT_RESTFUL_BRANCH)
    }

    /// The port of the server.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(DEFAULT_RESTFUL_PORT)
    }
}

impl fmt::Debug for FluxRestful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { branch, port, secret_name, username, secret_key: _, token: _ } = self;
        let mut shown = f.debug_struct("FluxRestful");
        shown.field("branch", branch).field("port", port).field("secret_name", secret_name);
        shown.field("username", username).finish_non_exhaustive()
    }
}

/// One more user of the RESTful server.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct User {
    /// Name of the user.
    pub name: String,

    /// Password; generated, if not written. Whoever may read the MiniCluster can read it here.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub password: Option<String>,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}
