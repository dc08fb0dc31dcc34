//! Who may use the RESTful server of a new incarnation.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use tributary_api::minicluster::{DEFAULT_RESTFUL_USER, MiniCluster};
use tributary_clock::Rng;
use tributary_cluster::RequestError;
use tributary_cluster::caches::controller_uid;
use tributary_render::restful::{Credentials, SECRET_KEY, TOKEN, USERS, secret};

/// The Secret of this name for a new incarnation.
///
/// What was generated once stays as long as the MiniCluster does, so that its users go on over a restart.
///
/// # Errors
/// The API server did not answer.
pub(super) async fn obtain(
    reader: &Client,
    mini_cluster: &MiniCluster,
    name: &str,
    rng: &mut dyn Rng,
) -> Result<Secret, RequestError> {
    let namespace = mini_cluster.namespace().unwrap_or_default();
    let found = Api::<Secret>::namespaced(reader.clone(), &namespace).get_opt(name).await;
    let found = found.map_err(|error| RequestError::new("read", format!("Secret {namespace}/{name}"), error))?;
    let found = found.filter(|found| controller_uid(found) == mini_cluster.uid().as_deref());
    Ok(secret(mini_cluster, &credentials(mini_cluster, found.as_ref(), rng)))
}

/// What is written wins, then what there is, then what is generated.
fn credentials(mini_cluster: &MiniCluster, found: Option<&Secret>, rng: &mut dyn Rng) -> Credentials {
    let restful = mini_cluster.spec.flux_restful.clone().unwrap_or_default();
    let found = |key: &str| {
        let bytes = &found?.data.as_ref()?.get(key)?.0;
        std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let known = found(USERS).unwrap_or_default();
    let password = |name: &str| {
        let mut lines = known.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(known, _)| *known == name).map(|(_, password)| password.to_owned())
    };
    let mut users = String::new();
    for user in &mini_cluster.spec.users {
        let password = user.password.clone().or_else(|| password(&user.name)).unwrap_or_else(|| word(rng, 2));
        // Infallible: into a text.
        let _ = writeln!(users, "{} {password}", user.name);
    }
    Credentials {
        username: restful.username.unwrap_or_else(|| DEFAULT_RESTFUL_USER.to_owned()),
        token: restful.token.or_else(|| found(TOKEN)).unwrap_or_else(|| word(rng, 4)),
        secret_key: restful.secret_key.or_else(|| found(SECRET_KEY)).unwrap_or_else(|| word(rng, 4)),
        users,
    }
}

/// Hexadecimal digits, 64 random bits in each of `parts`.
fn word(rng: &mut dyn Rng, parts: usize) -> String {
    (0..parts).map(|_| format!("{:016x}", rng.next_u64())).collect()
}

#[cfg(test)]
mod tests {
    use tributary_clock::SeededRng;
    use tributary_render::restful::USERNAME;

    use super::*;

    fn lake(spec: &str) -> MiniCluster {
        serde_saphyr::from_str(&format!("{{metadata: {{name: lake, namespace: waters, uid: u-1}}, spec: {spec}}}"))
            .unwrap()
    }

    fn text(secret: &Secret, key: &str) -> String {
        String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
    }

    #[test]
    fn what_was_generated_stays_and_what_is_written_wins() {
        let mut rng = SeededRng::new(1);
        let plain = lake("{fluxRestful: {}, users: [{name: ann}, {name: bob, password: secret}], containers: [{}]}");
        let first = secret(&plain, &credentials(&plain, None, &mut rng));
        assert_eq!(text(&first, USERNAME), "flux");
        assert_eq!(text(&first, TOKEN).len(), 64);
        assert_ne!(text(&first, TOKEN), text(&first, SECRET_KEY));
        let users = text(&first, USERS);
        let (ann, others) = users.split_once('\n').unwrap();
        assert_eq!((ann.len(), others), ("ann ".len() + 32, "bob secret\n"), "{users}");

        let again = secret(&plain, &credentials(&plain, Some(&first), &mut rng));
        assert_eq!(again.data, first.data);
        let written = lake("{fluxRestful: {username: ann, token: t, secretKey: k}, containers: [{}]}");
        let written = secret(&written, &credentials(&written, Some(&first), &mut rng));
        assert_eq!([USERNAME, TOKEN, SECRET_KEY].map(|key| text(&written, key)), ["ann", "t", "k"]);
    }
}
